"""What may be completed at TAB: one file for each kind of value."""
