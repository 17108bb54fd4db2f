"""The command's side of the child that counts: takes what it sends, and gives it up where a directory does not answer."""

import time
from collections.abc import Callable, Sequence

import msgspec

from mldebug.storage.usage.model import CountedTree
from mldebug.storage.usage.tally import UsageTally
from mldebug_agents.storage.usage.messages import NAME, CountProgress, CountRequest
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.spawn import ForkedWorker, Spawner

PATIENCE = 10.0  # seconds without a message, which comes four times a second
SILENT = "it does not answer"


def count_trees(
    spawner: Spawner,
    request: CountRequest,
    tally: UsageTally,
    tell: Callable[[str], None] = lambda at: None,
    patience: float = PATIENCE,
) -> tuple[CountedTree, ...]:
    """Count these directories into `tally`; how far each came, in their order. `tell` is called with the folder that is being counted.

    A directory that hangs is given up after `patience` seconds without a word, and those after it are counted by another child, as
    far as there is time.
    """
    until = time.monotonic() + request.seconds
    paths: Sequence[bytes] = request.paths
    found: list[CountedTree] = []
    while len(found) < len(paths):
        left = msgspec.structs.replace(request, paths=paths[len(found) :], seconds=max(1.0, until - time.monotonic()))  # fmt: skip
        found += _count(spawner, left, tally, tell, patience)
    return tuple(found)


def _count(spawner: Spawner, request: CountRequest, tally: UsageTally, tell: Callable[[str], None], patience: float) -> list[CountedTree]:  # fmt: skip
    """The trees until the end, or until one hangs, which is the last of them."""
    worker = spawner.fork_worker(NAME)
    worker.socket.settimeout(patience)
    link = ChildLink(worker.socket, msgspec.msgpack.Decoder(CountProgress))
    done: list[CountedTree] = []
    at = request.paths[0]
    try:
        link.send(request)
        while not (progress := link.receive()).over:
            for folder in progress.folders:
                tally.add(folder)
            if progress.tree is not None:
                done.append(progress.tree)
                tally.tops.append(progress.tree.path)
            at = progress.at or at
            tell(_text(at))
    except OSError as error:
        done.append(_given_up(spawner, worker, request.paths[len(done)], at, error))
        return done
    worker.kill()
    return done


def _given_up(spawner: Spawner, worker: ForkedWorker, path: bytes, at: bytes, error: OSError) -> CountedTree:  # fmt: skip
    if not isinstance(error, TimeoutError):
        worker.kill()
        return CountedTree(path=_text(path), trouble=f"the child that counts it is gone: {error}")
    spawner.abandon(worker, f"{NAME}: {_text(at)}"[:200])
    if at == path:
        return CountedTree(path=_text(path), trouble=SILENT)
    words = f"something in it does not answer, in {_text(at)} or shortly after it"
    return CountedTree(path=_text(path), unfinished=(_text(at),), stopped_by=words)


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
