"""The call tracer: the engines that get events from Python, the filters that choose code, and the ring file that events go into."""
