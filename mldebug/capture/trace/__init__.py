"""Call traces (rings): parses them, prints and exports them, and compares those of several ranks. Pure."""
