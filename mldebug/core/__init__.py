"""What everything else is built on: the data model, errors, the plugin registry, text and file utilities. Pure."""
