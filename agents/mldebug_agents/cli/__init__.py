"""The verbs of the command line that look at this node, and shell completion."""
