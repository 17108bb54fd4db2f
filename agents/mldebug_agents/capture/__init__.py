"""Takes captures of a job: all evidence of its ranks at one moment, each source with a deadline."""
