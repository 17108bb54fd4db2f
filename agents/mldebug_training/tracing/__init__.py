"""The call tracer: engines, filters, and the ring that it writes."""
