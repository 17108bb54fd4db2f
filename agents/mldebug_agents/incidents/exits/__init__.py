"""How jobs end on this node: watches the exits of ranks, and collects the logs and other evidence
that they leave behind.
"""
