"""Incidents on this node while they live: opened, fed by captures, closed, written down."""
