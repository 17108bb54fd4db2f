"""How a probe runs: in child processes of the training environment's Python, never beside a job, with nothing left behind."""
