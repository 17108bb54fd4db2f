"""What a job wrote before it ended: which rank wrote which lines, the error that they end with, and which ranks it accuses.

Pure.
"""
