"""From captures and exits to a verdict: classify ranks, run the detectors, choose the most specific finding. Pure."""
