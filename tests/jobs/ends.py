"""A job that ends in the way it is asked to, as soon as EVENTS/go exists; most ways need no PyTorch.

Started by torchrun, or by hand with RANK and its companions. Every rank announces itself in EVENTS/started.RANK.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from events import put

AGES = 3600.0
HOARD = 10 << 20  # bytes that a hoarder takes at once


def fail(options: argparse.Namespace) -> None:
    raise ValueError(options.message)


def leave(options: argparse.Namespace) -> None:
    os._exit(options.code)


def sleep(options: argparse.Namespace) -> None:
    time.sleep(AGES)


def crash(options: argparse.Namespace) -> None:
    os.kill(os.getpid(), options.number)


def hoard(options: argparse.Namespace) -> None:
    """Take memory until the kernel objects."""
    held = []
    while True:
        held.append(bytearray(HOARD))
        time.sleep(0.02)


WAYS: dict[str, Callable[[argparse.Namespace], None]] = {
    "fail": fail,
    "leave": leave,
    "sleep": sleep,
    "crash": crash,
    "hoard": hoard,
}


def wait_for_go(options: argparse.Namespace) -> None:
    """Restarted attempts go after a while of their own, or by EVENTS/go.ATTEMPT where they are held."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt:
        time.sleep(options.pause)
    go = options.events / (f"go.{attempt}" if attempt else "go")
    while (options.hold or not attempt) and not go.exists():
        time.sleep(0.02)


def together(options: argparse.Namespace, rank: int) -> None:
    """The struck rank ends while the others wait for it in a collective."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(4)
    dist.all_reduce(value)
    announce(options, rank)
    wait_for_go(options)
    if rank == options.rank:
        WAYS[options.way](options)
    dist.all_reduce(value)


def announce(options: argparse.Namespace, rank: int) -> None:
    put(options.events / f"started.{rank}", str(os.getpid()))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--way", default="none", choices=["none", *WAYS])
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--message", default="bad shard 7")
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--number", type=int, default=signal.SIGKILL)
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--hold", action="store_true", help="restarted attempts wait, too")
    parser.add_argument("--good-attempt", type=int, default=-1, help="the attempt that lives on")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--others", default="stay", choices=["stay", "end"])
    return parser.parse_args()


def main() -> None:
    """End as asked."""
    options = parse()
    rank = int(os.environ["RANK"])
    if options.gloo:
        together(options, rank)
        return
    announce(options, rank)
    wait_for_go(options)
    good = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == options.good_attempt
    if rank == options.rank and options.way != "none" and not good:
        WAYS[options.way](options)
    if options.others == "stay":
        time.sleep(AGES)
    sys.exit(0)


if __name__ == "__main__":
    main()
