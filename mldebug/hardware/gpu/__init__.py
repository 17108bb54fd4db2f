"""GPUs as data: the readings of one node's GPUs, and conclusions from them."""
