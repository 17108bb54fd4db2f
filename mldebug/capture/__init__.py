"""What a capture of a job holds: stacks, Flight Recorder, NCCL RAS, call traces. Pure readers of bytes."""
