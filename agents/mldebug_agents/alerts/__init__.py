"""Who is told: events of this node, kept over a restart, and the channels that get them."""
