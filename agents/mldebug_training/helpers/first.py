"""Lets one rank do something first (download, tokenise, build) and the others after it, without a barrier.

The others wait at the store of torch.distributed, with a deadline of their own, and learn at once when the first one failed. Nobody
waits for them, so the block may take longer than any collective's timeout. Threads call the store, because its calls have no
deadline, and one to a stopped host never returns.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from mldebug_training.common.calls import ANSWERING, FOR_EVER, BackgroundCall, LateError
from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.switches.opening import hand_out_token, new_token, request_token
from mldebug_training.helpers.switches.visits import StoreRequests
from mldebug_training.hook import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

TIMEOUT = 3600.0
SCOPES = ("job", "node")
MAX_ERROR = 2000

_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NODE = ("GROUP_RANK", "SLURM_NODEID")
_turns: dict[str, int] = {}


class MainProcessError(RuntimeError):
    """The rank that goes first failed, or was not ready in time."""


class MainProcessFirst:
    """The context manager that `main_process_first` returns."""

    def __init__(self, timeout: float = TIMEOUT, scope: str = "job") -> None:
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r}: it is one of {', '.join(SCOPES)}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: it is a number of seconds")
        self._timeout, self._scope = timeout, scope
        self._first = True
        self._store: Any = None
        self._size = 1
        self._key = ""  # of all launches
        self._place = ""  # of this one, below it

    def __enter__(self) -> bool:
        """Whether this rank goes first; the others come here when it is done."""
        dist = _distributed()
        if dist is None:
            return True
        self._store = dist.distributed_c10d._get_default_store()
        self._size = int(dist.get_world_size())
        node = _node(os.environ)
        place = f"{self._scope}/{node if self._scope == 'node' else ''}"
        turn = _turns[place] = _turns.get(place, 0) + 1
        self._key = f"mldebug/first/{place}/{turn}"
        self._first = self._goes_first(dist)
        if self._first:
            self._lead(f"rank {dist.get_rank()}")
        else:
            visits = StoreRequests(self._store, self._size)
            self._wait(lambda: self._follow(visits, node), visits, self._timeout)
        return self._first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if self._store is not None and self._first:
            try:
                self._put("done", _words(kind, error) if kind else "done")
            except Exception as gone:  # the store, and so the job; what was raised inside says more
                pass_on(gone)
                if kind is None:
                    raise
        self._store = None

    def _goes_first(self, dist: Any) -> bool:
        if self._scope == "job":
            return bool(dist.get_rank() == 0)
        local = _first_set(_LOCAL)
        if not local:  # whoever comes first
            visits = StoreRequests(self._store, self._size)
            taken = lambda: visits.ask("add", f"{self._key}/tickets", 1)
            return bool(self._wait(taken, visits, 0.0) == 1)
        return local == "0"

    def _lead(self, name: str) -> None:
        """Announce this rank. A thread gives the others, as they come, the key below which this launch writes."""
        self._place = f"{self._key}/{new_token()}"
        self._put("came", name)
        others = self._size if self._scope == "job" else int(_first_set(_LOCAL_SIZE) or self._size)
        visits, key, place = StoreRequests(self._store, self._size), self._key, self._place

        def lead() -> None:
            with visits:
                all_acknowledged = lambda: visits.ask("add", f"{place}/heard", 0) >= others - 1
                hand_out_token(visits, key, place, all_acknowledged, FOR_EVER)

        try:
            BackgroundCall(lead).start()
        except RuntimeError as error:  # this thread would wait for the others
            pass_on(error)
            raise MainProcessError(
                f"main_process_first has no thread to tell the others with: {error}"
            ) from None

    def _put(self, word: str, text: str) -> None:
        """Write to the store, waiting a few seconds at most: a store that hangs gets it later."""
        store, key = self._store, f"{self._place}/{word}"
        call = _begun(BackgroundCall(lambda: store.set(key, text)))
        if call.wait(ANSWERING):
            call.result(0.0)

    def _wait(self, asks: Callable[[], Any], visits: StoreRequests, timeout: float) -> Any:
        """Return what `asks` returns in a thread, waiting `timeout` and a few seconds for the store's answer."""
        most = timeout + ANSWERING
        try:
            return _begun(BackgroundCall(asks)).result(most)
        except LateError:
            raise MainProcessError(
                f"the job's store did not answer in main_process_first: waited {most:g} s for it"
            ) from None
        finally:
            visits.end()

    def _follow(self, visits: StoreRequests, node: str) -> None:
        """Ask until it is done; a question to the store, and not a wait there, blocks nobody else who uses it."""
        who = "rank 0" if self._scope == "job" else f"local rank 0 of node {node}"
        span, deadline = f"{self._timeout:g} s", time.monotonic() + self._timeout
        with visits:
            try:
                place = request_token(visits, self._key, self._timeout)
            except LateError:
                raise MainProcessError(
                    f"{who} never came to main_process_first: waited {span} for it"
                ) from None
            visits.ask("add", f"{place}/heard", 1)
            who = visits.values([f"{place}/came"])[0].decode("utf-8", "replace")
            done = f"{place}/done"
            try:
                visits.until(lambda: visits.ask("check", [done]), deadline - time.monotonic())
            except LateError:
                raise MainProcessError(f"{who} went first and is not done after {span}") from None
            result = visits.values([done])[0].decode("utf-8", "replace")
        if result.startswith("!"):
            raise MainProcessError(f"{who} failed in main_process_first: {result[1:]}")


def main_process_first(timeout: float = TIMEOUT, scope: str = "job") -> MainProcessFirst:
    """`with main_process_first():` Rank 0 runs the block first, the others when it is done. All ranks must enter it equally
    often.

    `scope="node"`: one rank of each node goes first. In the other ranks it raises MainProcessError where the first one failed,
    or is not done after `timeout` seconds.
    """
    return MainProcessFirst(timeout, scope)


def _begun(call: BackgroundCall) -> BackgroundCall:
    """By a thread; where the process may have no more of them, by this one, and without a deadline."""
    try:
        return call.start()
    except RuntimeError as error:
        pass_on(error)
        call.make()
        return call


def _words(kind: type[BaseException], error: BaseException | None) -> str:
    """What was raised, as the store takes it: of an exception that cannot tell itself its type."""
    try:
        text_of_error = str(error)
    except Exception as silent:  # its __str__ is the job's
        pass_on(silent)
        text_of_error = ""
    text = f"!{kind.__name__}: {text_of_error}"[:MAX_ERROR]
    return text.encode("utf-8", "backslashreplace").decode()


def _node(environ: Mapping[str, str]) -> str:
    """The same for all ranks that one launcher started on one node."""
    return _first_set(_NODE, environ) or socket.gethostname()


def _first_set(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Return the first of these variables that is set; "" where none is."""
    return next((environ[name] for name in names if environ.get(name)), "")


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
