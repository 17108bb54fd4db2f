"""Stacks of a process: py-spy, pystack, native stacks, and what a blocked system call waits for."""
