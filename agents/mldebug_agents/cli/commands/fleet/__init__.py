"""The hub, and what it knows of all nodes: commands, one file each."""
