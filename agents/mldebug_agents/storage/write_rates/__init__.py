"""How fast each rank writes, and which of its open files grow fastest, to find out which rank fills a filesystem."""
