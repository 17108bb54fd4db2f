"""Stops and checkpoints that all ranks agree on."""
