"""Alerts: findings of all subjects as events with a key, a severity and an end."""
