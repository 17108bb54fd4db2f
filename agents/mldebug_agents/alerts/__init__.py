"""Alerts in the agent: events of this node, kept over a restart; the channels that they are sent to; and actions that follow them."""
