"""Ports of the network, read from /sys."""
