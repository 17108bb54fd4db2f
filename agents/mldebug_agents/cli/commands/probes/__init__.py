"""Measurements of nodes before a job starts there: commands, one file each."""
