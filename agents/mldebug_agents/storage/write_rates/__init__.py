"""Who fills a filesystem: how fast each rank writes, and which of its open files grow fastest."""
