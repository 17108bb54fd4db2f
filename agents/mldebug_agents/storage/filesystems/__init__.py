"""The filesystems that jobs use: how full they are, when they will be full, and which do not answer."""
