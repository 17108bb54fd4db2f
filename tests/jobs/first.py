"""Goes through `main_process_first` in the way that is asked for; every rank writes what came of it to EVENTS/told.RANK."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist
from events import put

import mldebug_training
from mldebug_training.helpers import first as first_module


def main(events: Path, how: str) -> None:
    rank = int(os.environ["RANK"])
    put(events / f"started.{rank}", str(os.getpid()))
    dist.init_process_group("gloo")
    try:
        result = HOW[how](rank, events)
    except (ValueError, mldebug_training.MainProcessError) as error:
        result = f"{type(error).__name__}: {error}"
    put(events / f"told.{rank}", result.encode("utf-8", "backslashreplace").decode())
    if how == "stopped" and rank:
        os.kill(keeper_of(events), signal.SIGCONT)
    dist.barrier()
    dist.destroy_process_group()


def keeper_of(events: Path) -> int:
    """The pid of rank 0."""
    return int((events / "started.0").read_text())


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped this process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def order(rank: int, events: Path) -> str:
    results = []
    for scope in ("job", "node", "job"):
        with mldebug_training.main_process_first(math.inf, scope) as first:
            path = events / f"made.{len(results)}"
            results.append(f"{first}:{path.exists()}")
            if first:
                time.sleep(0.5)
                path.touch()
    return " ".join(results)


def fails(rank: int, _: Path) -> str:
    with mldebug_training.main_process_first(60) as first:
        if first:
            raise ValueError("no such dataset")
    return "went through"


def fails_oddly(rank: int, _: Path) -> str:
    """In words that no store takes, as names of files have them."""
    with mldebug_training.main_process_first(60) as first:
        if first:
            raise ValueError("no such file: a\udcff")
    return "went through"


def relaunched(rank: int, events: Path) -> str:
    """The ranks are launched anew with the store of before, where the first one had failed, and later was done."""
    results = []
    for fails_now in (True, False, False):
        first_module._turns.clear()
        dist.barrier()
        made = events / f"made.{len(results)}"
        try:
            with mldebug_training.main_process_first(60) as first:
                if first:
                    time.sleep(0.5)
                    if fails_now:
                        raise ValueError("no such dataset")
                    made.touch()
            results.append(str(made.exists()))
        except (ValueError, mldebug_training.MainProcessError) as error:
            results.append(type(error).__name__)
    return " ".join(results)


def never_comes(rank: int, _: Path) -> str:
    if rank == 0:
        return "elsewhere"
    with mldebug_training.main_process_first(2):
        return "went through"


def let_it_go_first(rank: int, events: Path) -> None:
    """Wait until rank 0 is inside: the two seconds are for what it does there, not for a busy machine."""
    while rank and not (events / "inside").exists():
        time.sleep(0.05)


def never_ends(rank: int, events: Path) -> str:
    let_it_go_first(rank, events)
    with mldebug_training.main_process_first(2) as first:
        if first:
            put(events / "inside", "")
        while first and not (events / "told.1").exists():
            time.sleep(0.05)
    return "went through"


def stopped(rank: int, events: Path) -> str:
    """Rank 0, which keeps the store where no launcher does, is stopped until the other one has said what it has learned.

    It stops once the other one is through `init_process_group`, which asks the store, too, and may be seconds later there. The
    other one comes when it has stopped: the two seconds are not for a busy machine.
    """
    if rank:
        put(events / "ready", "")
        while not is_stopped(keeper_of(events)):
            time.sleep(0.05)
    with mldebug_training.main_process_first(2) as first:
        while first and not (events / "ready").exists():
            time.sleep(0.05)
        if first:
            os.kill(os.getpid(), signal.SIGSTOP)
    return "went through"


HOW = {
    "order": order,
    "fails": fails,
    "fails_oddly": fails_oddly,
    "never_comes": never_comes,
    "never_ends": never_ends,
    "stopped": stopped,
    "relaunched": relaunched,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
