"""Makes all ranks stop or write a checkpoint at the same step."""
