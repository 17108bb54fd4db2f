"""Where GPU hours go, and which rank is slow: commands, one file each."""
