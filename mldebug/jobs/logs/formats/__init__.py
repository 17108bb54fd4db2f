"""Log formats, one file each: from one line to a progress record."""
