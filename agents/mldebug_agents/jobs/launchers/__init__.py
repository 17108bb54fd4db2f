"""Launchers, one file each: how each tells its ranks who they are."""
