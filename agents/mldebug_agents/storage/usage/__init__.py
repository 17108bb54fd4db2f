"""Counts who uses what below directories: a child of idle priority walks them, the command that asked waits with a deadline."""
