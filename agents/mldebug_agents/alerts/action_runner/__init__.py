"""Runs the actions that the configuration names for an event: step by step, with each decision written to the audit log."""
