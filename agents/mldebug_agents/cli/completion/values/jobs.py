"""Jobs on this node that the user may see, as its agent tells them."""

from collections.abc import Iterator

import msgspec

from mldebug.config.schema import SYSTEM_STATE_DIR, load_config
from mldebug.core.model import MeasuredData
from mldebug.core.plugins import NoOptions
from mldebug_agents.cli.completion.request import CompletionRequest, Value
from mldebug_agents.cli.completion.values import ValueSource
from mldebug_agents.web.unix_http import UnixConnection

MAX_BYTES = 32 << 20
PATH = "/api/v1/status"


class RunNames(MeasuredData, frozen=True, kw_only=True):
    """Of one run in the agent's JSON answer about this node, what the completion of run names reads: all other fields are skipped."""

    id: str
    name: str
    user: str = ""
    world_size: int = 1
    report: str = ""


class RunNamesList(MeasuredData, frozen=True, kw_only=True):
    """The part of the agent's snapshot that completion needs: decoding all of it takes too long."""

    runs: tuple[RunNames, ...] = ()


class JobValues:
    """The jobs that the agent reports: first their ids, then their names."""

    def values(self, request: CompletionRequest) -> Iterator[Value]:
        """The jobs of this user's agent, or else of the node's service; with a config file on the
        command line, of its agent alone.
        """
        own = load_config(request.config).agent.state_dir
        places = [own] if request.config else dict.fromkeys((own, SYSTEM_STATE_DIR))
        for place in places:
            try:
                runs = _runs(UnixConnection(place))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                continue
            yield from (Value(run.id, _sentence(run)) for run in runs)
            yield from (Value(run.name, _sentence(run)) for run in runs)
            return


def _runs(link: UnixConnection) -> tuple[RunNames, ...]:
    link.request("GET", PATH)
    body = link.getresponse().read(MAX_BYTES)
    link.close()
    return msgspec.json.decode(body, type=RunNamesList).runs


def _sentence(run: RunNames) -> str:
    return run.report or f"{run.name}, {run.world_size} ranks, of {run.user}"


def create(options: NoOptions) -> ValueSource:
    """Build the source of completion values `jobs`: jobs on this node that the user may see, as its agent tells them."""
    return JobValues()
