"""The agent's state for `mldebug status`, the API, the metrics and the pages: first as data, then as lines."""
