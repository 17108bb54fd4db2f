"""Rings of traced calls: what is in one, how it is shown, exported, and compared with those of other ranks. Pure."""
