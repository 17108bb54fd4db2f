"""Whether ranks differ: by the shares of their samples, and by a glance at their system calls."""
