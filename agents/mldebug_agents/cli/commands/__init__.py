"""The verbs of the command line that look at this node, one file each."""
