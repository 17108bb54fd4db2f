"""What is done about an event, and only where the config says so: chains of steps, each decision written down."""
