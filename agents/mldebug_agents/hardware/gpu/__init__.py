"""The GPUs of this node: the child that reads them, and what the agent makes of its readings."""
