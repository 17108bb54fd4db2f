"""Where a hub keeps events: one file for each database."""

from mldebug.fleet.hub_model import FleetStore

__all__ = ["FleetStore"]
