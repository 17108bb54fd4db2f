"""What measurements of `mldebug probe` mean: formulas, statistics, verdicts. Pure."""
