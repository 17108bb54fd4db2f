"""How the agent starts, reloads its configuration, measures time and ends."""
