"""NCCL RAS of the jobs on this node: where to ask, the conversation, and what comes back."""
