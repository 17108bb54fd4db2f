"""Records this node for somebody who cannot log in to it: one file, with names redacted, of limited size, that lists what is
missing.
"""
