"""What a running job loses: which rank slows the others down, and by how much."""
