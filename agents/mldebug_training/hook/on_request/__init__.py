"""What this process does only where the job was started so: tell who holds its CUDA memory when that runs out."""
