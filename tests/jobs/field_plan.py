"""A rank that ends as a recorded one did: it prints the same words at the same pace, and exits alike. Needs no PyTorch.

field_plan.py EVENTS PLAN.json: what a plan holds, tests/fixtures/field/README.md says. It begins as soon as EVENTS/go exists.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from events import put

AGES = 3600.0


def announce(events: Path, rank: str) -> None:
    put(events / f"started.{rank}", str(os.getpid()))


def wait_for_go(events: Path, rank: str) -> None:
    """Train until it may end, so that an agent knows it."""
    step = 0
    while not (events / "go").exists():
        if rank == "0":
            print(f"step {step} loss 2.{step:03d}", flush=True)
        step += 1
        time.sleep(0.2)


def play(step: Any, rank: str) -> None:
    if isinstance(step, str):
        for line in step.replace("{rank}", rank).splitlines():
            print(line, file=sys.stderr, flush=True)
    elif "exit" in step:
        os._exit(step["exit"])
    elif "signal" in step:
        os.kill(os.getpid(), step["signal"])
        time.sleep(AGES)
    elif "sleep" in step:
        time.sleep(min(step["sleep"], AGES))


def main() -> None:
    events, rank = Path(sys.argv[1]), os.environ["RANK"]
    plans = json.loads(Path(sys.argv[2]).read_text())["ranks"]
    announce(events, rank)
    wait_for_go(events, rank)
    for step in plans.get(rank, plans.get("*", [])):
        play(step, rank)


if __name__ == "__main__":
    main()
