"""What a training process records about itself once the hook is in it."""
