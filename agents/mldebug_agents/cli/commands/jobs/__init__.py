"""What a job is started by, and what it is asked to do: commands, one file each."""
