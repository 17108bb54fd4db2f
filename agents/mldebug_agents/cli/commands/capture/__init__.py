"""Stacks, call traces, profiles and CUDA memory of running jobs: commands, one file each."""
