"""The tools of a capture."""
