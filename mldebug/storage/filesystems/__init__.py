"""How full filesystems and quotas are, when they will be full, and the alerts about it. Pure: the agent reads the figures."""
