"""PyTorch's Flight Recorder: parses dumps of all versions and concludes which rank the others wait for."""
