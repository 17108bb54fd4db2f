"""Runs probes: in child processes of the training environment's Python, never beside a job, leaving no process behind."""
