"""Sizes of chosen directories, kept fresh: one child counts and watches, the agent holds what it tells."""
