"""Alerts in the agent: events of this node, kept over a restart, the channels that get them, and actions."""
