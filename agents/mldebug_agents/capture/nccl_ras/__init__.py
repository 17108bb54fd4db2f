"""Asks NCCL RAS, the status service inside a job's NCCL: the child process that connects, the protocol, and the client."""
