"""Output for people and other systems: Prometheus metrics, and channels such as mail, chat and webhooks."""
