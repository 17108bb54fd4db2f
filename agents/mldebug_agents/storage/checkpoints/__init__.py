"""Where the jobs of this node save, and how far the newest save is."""
