"""The filesystems that jobs use: which they are, how full, how long they last, and which of them do not answer."""
