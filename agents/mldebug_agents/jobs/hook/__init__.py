"""Talks to mldebug's hook inside a training process: reads its record, asks it for stacks and the
Flight Recorder, sets switches.

No ptrace is used.
"""
