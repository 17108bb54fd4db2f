"""Agents on other nodes: who they are, and captures of many nodes at one moment."""
