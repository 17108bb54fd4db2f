"""Runs one command on many nodes at once, with a deadline: the order, the child that runs it, and the collected replies."""
