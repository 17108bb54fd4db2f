"""Sizes of configured directories, kept current: one child process counts and watches, the agent keeps what it reports."""
