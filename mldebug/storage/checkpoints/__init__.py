"""Saves of a job: what lies on disk, whether it is whole, and what would be lost without it. Pure."""
