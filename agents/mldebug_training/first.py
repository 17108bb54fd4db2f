"""One rank does something first (download, tokenise, build), the others after it: never a barrier.

The others wait at the job's store, with a deadline of their own, and learn at once when the first one failed. Nobody waits
for the others, so that what is inside may take longer than any collective's timeout. Threads ask the store, because no call of
it has a deadline, and one to a host that is stopped never comes back.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from mldebug_training import ranks
from mldebug_training.calls import ANSWERING, Call, LateError
from mldebug_training.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

TIMEOUT = 3600.0
SCOPES = ("job", "node")
LONGEST_PAUSE = 1.0  # seconds between two questions to the store
MAX_ERROR = 2000

_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NODE = ("GROUP_RANK", "SLURM_NODEID")
_turns: dict[str, int] = {}


class MainProcessError(RuntimeError):
    """The rank that goes first failed, or did not get ready in time."""


class MainProcessFirst:
    """What `main_process_first` gives."""

    def __init__(self, timeout: float = TIMEOUT, scope: str = "job") -> None:
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r}: it is one of {', '.join(SCOPES)}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: it is a number of seconds")
        self._timeout, self._scope = timeout, scope
        self._first = True
        self._store: Any = None
        self._key = ""
        self._left = False  # nobody waits any more

    def __enter__(self) -> bool:
        """Whether this rank goes first; the others come here when it is done."""
        dist = _distributed()
        if dist is None:
            return True
        self._store = dist.distributed_c10d._get_default_store()
        node = _node(os.environ)
        place = f"{self._scope}/{node if self._scope == 'node' else ''}"
        turn = _turns[place] = _turns.get(place, 0) + 1
        self._key = f"mldebug/first/{place}/{turn}"
        self._first = self._goes_first(dist)
        if self._first:
            self._tell("came", f"rank {dist.get_rank()}")
        else:
            self._wait(lambda: self._ask(node), self._timeout)
        return self._first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if self._store is not None and self._first:
            try:
                self._tell("done", _words(kind, error) if kind else "done")
            except Exception as gone:  # the store, and so the job; what was raised inside says more
                pass_on(gone)
                if kind is None:
                    raise
        self._store = None

    def _goes_first(self, dist: Any) -> bool:
        if self._scope == "job":
            return bool(dist.get_rank() == 0)
        local = next((os.environ[name] for name in _LOCAL if os.environ.get(name)), None)
        if local is None:  # whoever comes first
            store, key = self._store, f"{self._key}/tickets"
            return bool(self._wait(lambda: store.add(key, 1), 0.0) == 1)
        return local == "0"

    def _tell(self, word: str, text: str) -> None:
        """A store that has not heard it by then hears it when it goes on: nobody is kept here for it."""
        store, key = self._store, f"{self._key}/{word}"
        call = Call(lambda: store.set(key, text))
        if call.wait(ANSWERING):
            call.result(0.0)

    def _wait(self, asks: Callable[[], Any], timeout: float) -> Any:
        """What the store says, which is asked for so long, and has some seconds to answer."""
        self._left, most = False, timeout + ANSWERING
        try:
            return Call(asks).result(most)
        except LateError:
            raise MainProcessError(
                f"the job's store did not answer in main_process_first: waited {most:g} s for it"
            ) from None
        finally:
            self._left = True

    def _ask(self, node: str) -> None:
        """Ask until it is done; a question to the store, and not a wait there, blocks nobody else who uses it."""
        deadline, pause = time.monotonic() + self._timeout, 0.01
        while not self._store.check([f"{self._key}/done"]):
            left = deadline - time.monotonic()
            if left <= 0 or self._left:
                raise MainProcessError(self._who(node))
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)
        told = self._store.get(f"{self._key}/done").decode("utf-8", "replace")
        if told.startswith("!"):
            raise MainProcessError(f"{self._came(node)} failed in main_process_first: {told[1:]}")

    def _who(self, node: str) -> str:
        span = f"{self._timeout:g} s"
        if self._store.check([f"{self._key}/came"]):
            return f"{self._came(node)} went first and is not done after {span}"
        return f"{self._came(node)} never came to main_process_first: waited {span} for it"

    def _came(self, node: str) -> str:
        if self._store.check([f"{self._key}/came"]):
            return str(self._store.get(f"{self._key}/came").decode("utf-8", "replace"))
        return "rank 0" if self._scope == "job" else f"local rank 0 of node {node}"


def main_process_first(timeout: float = TIMEOUT, scope: str = "job") -> MainProcessFirst:
    """`with main_process_first():` Rank 0 goes through the block first, the others when it is done.

    `scope="node"`: one of each node first. Raises MainProcessError in the others where the first one failed, and where it
    is not done after `timeout` seconds. All ranks come here equally often.
    """
    return MainProcessFirst(timeout, scope)


def _words(kind: type[BaseException], error: BaseException | None) -> str:
    """What was raised, as the store takes it: of an exception that cannot tell itself its type."""
    try:
        told = str(error)
    except Exception as silent:  # its __str__ is the job's
        pass_on(silent)
        told = ""
    text = f"!{kind.__name__}: {told}"[:MAX_ERROR]
    return text.encode("utf-8", "backslashreplace").decode()


def _node(environ: Mapping[str, str]) -> str:
    """The same for all ranks that one launcher started on one node."""
    told = next((environ[name] for name in _NODE if environ.get(name)), "")
    return told or socket.gethostname()


def _distributed() -> Any:
    """torch.distributed, None in a job of one process; raises where the ranks cannot reach each other yet."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        return dist if dist.get_world_size() > 1 else None
    if ranks.rank_and_size()[1] > 1:
        raise MainProcessError(
            "main_process_first needs torch.distributed: call init_process_group"
        )
    return None
