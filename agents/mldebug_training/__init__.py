"""What a training process says of itself (standard library only, Python >= 3.9)."""
