"""From captures to a class for every rank, and the case (all classified ranks of a job) that the detectors judge."""
