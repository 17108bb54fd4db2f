"""GPUs as values: what one node's GPUs say, and what that means."""
