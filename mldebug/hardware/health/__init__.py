"""Is a node fit to train? Health of each component, with the reason, and the one thing to do about it. Pure."""
