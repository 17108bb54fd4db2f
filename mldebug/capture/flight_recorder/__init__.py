"""What PyTorch's Flight Recorder tells of the ranks, and what it means."""
