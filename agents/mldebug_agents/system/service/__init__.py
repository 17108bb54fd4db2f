"""How the agent begins, reloads, tells the time and ends."""
