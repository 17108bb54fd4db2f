"""Asks NCCL RAS, the status service inside a job's NCCL, which ranks it knows and how many collectives each has begun: the child
process that connects, the protocol, and the client.
"""
