"""Where a hub is: its folder and socket on this machine, and the HTTP paths of its answers."""

from pathlib import Path

from mldebug.config.schema import Config

HUB_SOCKET = "hub.sock"
LEMONS = "/api/v1/fleet/lemons"
JOBS, NODE, RETRY = "/api/v1/fleet/jobs", "/api/v1/fleet/node", "/api/v1/fleet/retry"
NODES, INCIDENTS = "/api/v1/fleet/nodes", "/api/v1/fleet/incidents"
SIMILAR, NOTES, HOURS = "/api/v1/fleet/similar", "/api/v1/fleet/notes", "/api/v1/fleet/goodput"
SENDERS = "/api/v1/fleet/senders"


def hub_dir(config: Config) -> Path:
    """Where a hub keeps its database and its socket."""
    return config.hub.state_dir or config.agent.state_dir / "hub"
