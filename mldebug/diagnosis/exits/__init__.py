"""How a job ended: what was seen of its last moments, and who began it. Pure."""
