"""When does a quiet run count as stalled? Pure decisions on recorded looks; start reading at `rules.py`."""
