"""What frames, native functions and the kernel's wait channels say about a rank, as data."""
