"""Takes a capture of a job: every source of evidence, each with a deadline, without stopping anybody."""
