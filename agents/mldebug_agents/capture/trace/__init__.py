"""Reads the call traces of this node's ranks.

Each is a file of fixed size (a ring) into which the rank writes its latest calls.
"""
