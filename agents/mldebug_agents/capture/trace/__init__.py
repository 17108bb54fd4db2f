"""Call traces of this node's ranks: finding and reading their files (rings)."""
