"""Code that hook, tracer and helpers share."""
