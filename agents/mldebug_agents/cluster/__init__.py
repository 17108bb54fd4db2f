"""Agents on other nodes: how they find and trust each other, and captures of many nodes at one moment."""
