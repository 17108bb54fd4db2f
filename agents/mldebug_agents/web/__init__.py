"""The agent's doors, who may come in, and how to knock."""
