"""How the agents of several nodes work together: they prove the shared key, find which of them coordinates, and capture at one
moment.
"""
