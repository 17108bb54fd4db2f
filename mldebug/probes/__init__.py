"""What figures of a probe mean: formulas, statistics, judgement. Pure."""
