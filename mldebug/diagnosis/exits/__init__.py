"""How a job ended: the exits of its ranks, their last words in the logs, and which rank failed first.

Pure.
"""
