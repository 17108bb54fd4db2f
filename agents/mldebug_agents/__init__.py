"""The agent: the only code that looks at a machine."""
