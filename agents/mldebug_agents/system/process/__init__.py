"""What the kernel tells of one process: its threads and files, its rights, whether it is frozen; and reads that a process may hold up."""
