"""How batches of events come to a hub: one file for each way."""

from mldebug.fleet.hub_model import HubTransport

__all__ = ["HubTransport"]
