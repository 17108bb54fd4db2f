"""Network ports (RDMA adapters and network interfaces) of this node, read from /sys."""
