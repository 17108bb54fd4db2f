"""The agent itself: its main loop, how its parts are put together, and how its state is restored after a restart."""
