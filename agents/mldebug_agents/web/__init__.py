"""The agent's HTTP server, its web pages, who may see what, and the client that the commands use."""
