"""Incidents (stalls, bad ends and slowdowns of runs), their reports, and the store of reports on disk."""
