"""NVIDIA's management library, read through `pynvml` in a child of its own: nothing here runs in the agent itself."""
