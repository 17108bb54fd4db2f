"""Incidents, their reports, and where reports are stored."""
