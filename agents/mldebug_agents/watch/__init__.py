"""The cheap look at all jobs every few seconds: /proc, logs and hook records.

Stacks are read only where a stall is suspected, without stopping a process.
"""
