"""One command on many nodes at once, with a deadline: what is ordered, the child that runs it, and what comes of it."""
