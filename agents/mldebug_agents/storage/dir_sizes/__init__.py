"""Sizes of configured directories, kept up to date: a child process counts and watches, the agent keeps what it reports."""
