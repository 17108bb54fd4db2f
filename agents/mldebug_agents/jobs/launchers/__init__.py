"""Launchers, one file each: how each launcher's environment tells a process its rank."""
