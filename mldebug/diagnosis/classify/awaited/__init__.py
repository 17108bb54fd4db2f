"""What a rank waits for outside of collectives: a DataLoader worker, a file lock, a child process, another thread of its own."""
