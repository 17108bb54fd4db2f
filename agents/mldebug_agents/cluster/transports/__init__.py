"""Ways to run one command on many nodes, one file each."""
