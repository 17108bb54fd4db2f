"""InfiniBand, RoCE, EFA and Ethernet ports: what the kernel shows of them in /sys, parsed and followed."""
