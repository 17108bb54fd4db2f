"""The end of a job from what its logs recorded: their last attempt, which rank a local rank is, and whom they show."""
