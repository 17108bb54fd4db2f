"""Training jobs on this node: their ranks, launchers, schedulers, logs and hooks."""
