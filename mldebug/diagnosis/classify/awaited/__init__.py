"""What a rank waits for outside of collectives: a worker of its loader, a file lock, a child, a thread of its own."""
