"""What a scheduler says of jobs and nodes, and what that means for the jobs that somebody waits for."""
