"""The verbs of the command line that look at no node, one file each."""
