"""One child process that asks all mounts how full they are; a mount that hangs holds up one thread of it and nothing else."""
