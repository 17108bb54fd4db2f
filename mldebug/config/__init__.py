"""The configuration: one strict YAML file, read with line numbers, every problem reported at once."""
