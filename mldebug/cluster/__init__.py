"""Runs over several nodes: the messages between agents, the coordinator's decisions, and merging the captures of all nodes.

Pure.
"""
