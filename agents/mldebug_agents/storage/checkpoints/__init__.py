"""Where the jobs of this node write checkpoints, and whether the newest checkpoints are complete."""
