"""Alerts: what is wrong with jobs, GPUs, storage and nodes, as events with a key, a severity, a beginning and an end."""
