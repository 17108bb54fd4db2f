"""Reads with what each run was started, and keeps it after the run's end: see `mldebug why`."""
