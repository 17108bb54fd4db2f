"""Helpers that a training script may call itself."""
