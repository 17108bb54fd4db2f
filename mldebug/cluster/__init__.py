"""Across nodes: what one node sends of a run, and how the captures of many nodes become one case. Pure."""
