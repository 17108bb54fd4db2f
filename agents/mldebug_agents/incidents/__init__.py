"""Incidents (stalls, failures, slowdowns of a job) on this node while they live: opened, given
captures, closed, and written as reports.
"""
