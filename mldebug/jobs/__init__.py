"""Training jobs: log formats, scheduler answers, hook records, switches, known issues of their software. Pure."""
