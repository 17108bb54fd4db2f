"""Records this node for somebody who cannot log in to it: one file, redacted, bounded, with what is missing in it."""
