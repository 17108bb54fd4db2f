"""What hook, tracer and helpers share."""
