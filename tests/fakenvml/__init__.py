"""A `libnvidia-ml.so.1` without a GPU: `fakenvml.c` serves a table, `table` makes one of a recording, `library` steers it."""
