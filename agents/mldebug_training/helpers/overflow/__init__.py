"""Finds the first module whose numbers overflow."""
