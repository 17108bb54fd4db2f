"""`mldebug top` at work: the terminal that it draws on, the thread that looks at nodes, and the commands that its keys start."""
