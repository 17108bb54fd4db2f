"""Finds the ranks on this node: which process is a rank of which job, which ranks are missing, and what each has loaded."""
