"""Probes: short measurements of a node that is not training. One file, one `mldebug probe` verb."""
