"""GPUs, kernel log, host memory and their health, as values. Pure."""
