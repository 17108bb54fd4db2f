"""Answers to questions about a fleet, from stored events alone. Pure."""
