"""How a probe runs: in children of the training environment's Python, guarded, and with nothing left behind."""
