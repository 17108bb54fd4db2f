"""When a quiet run counts as stalled. Pure decisions on recorded readings of the run; start reading at `rules.py`."""
