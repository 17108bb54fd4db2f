"""The agent itself: its main loop, how its parts are put together, and what survives a restart."""
