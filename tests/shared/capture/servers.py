"""Asks one worker server of PyTorch, as the agent asks those of all ranks."""

from mldebug.core.model import FlightRecord
from mldebug_agents.capture.flight_recorder.worker_servers import SECONDS, ask_servers
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader import Reader


def ask_server(
    reader: Reader, place: str, rights: Rights, world: int, seconds: float = SECONDS
) -> FlightRecord | str:
    """The Flight Recorder of the one server at this place, or the reason why it cannot be had."""
    return ask_servers(reader, {0: (place,)}, {0: rights}, world, seconds)[0]
