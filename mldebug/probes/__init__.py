"""What the figures of probes mean: formulas, statistics, verdicts. Pure."""
