"""Actions that may follow an event, one file each."""
