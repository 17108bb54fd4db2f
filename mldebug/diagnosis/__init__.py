"""From captures of running processes, and from exits, to a verdict: classify ranks, run the detectors, choose the most specific finding.

Pure.
"""
