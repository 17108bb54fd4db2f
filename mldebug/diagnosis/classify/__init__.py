"""From a capture to a class for every rank, and the case that the detectors judge."""
