"""Whether a job may start on its nodes: what each has found, what differs between them, and whether they reach each other. Pure."""
