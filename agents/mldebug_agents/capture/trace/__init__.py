"""Trace rings of this node's ranks: where they are, how old their last record is, and what they say at a capture."""
