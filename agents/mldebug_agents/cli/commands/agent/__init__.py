"""What starts and ends the agent, and how to see its pages: commands, one file each."""
