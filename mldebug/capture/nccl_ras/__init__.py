"""NCCL RAS: what NCCL itself says of a job's communicators, taken apart and judged."""
