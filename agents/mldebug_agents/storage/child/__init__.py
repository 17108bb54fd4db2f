"""One child that asks all mounts how full they are; a dead one holds up a thread of that child and nothing else."""
