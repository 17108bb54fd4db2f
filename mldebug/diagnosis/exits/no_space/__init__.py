"""Exits for want of disk space: which filesystem was full, what was cut, and what the next attempt will meet."""
