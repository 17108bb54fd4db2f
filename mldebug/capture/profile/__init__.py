"""Where the time of a training step goes: read from traces of `torch.profiler` and from stacks sampled by py-spy, and put into words. Pure."""
