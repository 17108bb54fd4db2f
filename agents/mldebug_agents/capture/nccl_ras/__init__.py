"""Asks NCCL RAS of the jobs on this node: the child process that connects, the protocol, and the client."""
