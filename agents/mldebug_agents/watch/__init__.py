"""The cheap look at all jobs every few seconds, which attaches to no process."""
