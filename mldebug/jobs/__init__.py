"""What training jobs say of themselves: logs, schedulers, hook records, known issues of their software. Pure."""
