"""How a job ends by a recorded plan: what each rank writes and how it exits, judged as an agent that has read one log of all."""

import json
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mldebug.core.model import Job, RankIdentity
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.launcher_lines import launcher_words
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.output import (
    SHARED,
    LogOutput,
    own_errors,
    ranks_of_tasks,
    shared_lines,
)

ENDED_BY_LAUNCHER = 500.0  # seconds: whoever only sleeps is ended when all others are gone
LAUNCHER = 90
Dress = Callable[[int, str], str]  # of a rank's line
Plan = Mapping[str, list[Any]]  # the steps of each rank by its number, "*": of all others


class Played(NamedTuple):
    """What one rank of a plan has written, and when and with which wait(2) status it ended."""

    lines: list[str]
    at: float
    status: int


def play(steps: list[Any], rank: int) -> Played:
    """Take the steps of one rank: texts for its output, `sleep`, `train`, and `exit` or `signal`."""
    lines: list[str] = []
    at = 0.0
    for step in steps:
        if isinstance(step, str):
            lines += step.replace("{rank}", str(rank)).split("\n")
        elif "exit" in step:
            return Played(lines, at, step["exit"] << 8)
        elif "signal" in step:
            return Played(lines, at, step["signal"])
        else:
            at += step.get("sleep", 0.0)
    return Played(lines, ENDED_BY_LAUNCHER, int(signal.SIGTERM))


def attempt_of(
    plan: Path | Plan,
    world: int = 4,
    dress: Dress | None = None,
    shuffle: random.Random | None = None,
    launcher: str = "torchrun",
    *,
    file_each: bool = False,
) -> AttemptExit:
    """The attempt that a plan describes. `dress` makes of a rank's line what the log holds; `shuffle` mixes ranks' lines.

    `launcher`: of srun and mpirun each task is a rank, and their marks bear its number. `file_each`: each rank writes a log of its own.
    """
    plans = plan if isinstance(plan, Mapping) else json.loads(plan.read_text())["ranks"]
    played = {rank: play(plans.get(str(rank), plans.get("*", [])), rank) for rank in range(world)}
    dressed = dress or (lambda rank, line: line)
    texts = [[dressed(rank, line) if line else line for line in one.lines] for rank, one in played.items()]  # fmt: skip
    lines = _mixed(texts, shuffle) if shuffle else [line for text in texts for line in text]
    ranks = tuple(RankIdentity(rank=r, world_size=world, pid=100 + r, local_rank=r) for r in played)
    order = sorted(played, key=lambda rank: (played[rank].at, rank))
    exits = tuple(
        RankExit(rank=rank, pid=100 + rank, at=1000.0 + played[rank].at, moment=number,
                 status=played[rank].status, source="exit status")
        for number, rank in enumerate(order)
    )  # fmt: skip
    job = Job(id="j", name="train.py", launcher=launcher, world_size=world, ranks=ranks, launcher_pid=LAUNCHER)  # fmt: skip
    tasks = ranks_of_tasks(job, ranks)
    logs = zip(played, texts, strict=True) if file_each else [(None, lines)]
    outputs = [
        LogOutput(path=f"log{owner}", owner=owner, words=take_apart(some, {r: r for r in played}, tasks))
        for owner, some in logs
    ]  # fmt: skip
    return AttemptExit(
        job=job,
        identities=ranks,
        exits=exits,
        launcher_pid=LAUNCHER,
        words=launcher_words(lines),
        errors=own_errors(outputs),
        shared_error=last_error(shared_lines(outputs), SHARED, shared=True),
    )


def outcome_of(
    plan: Path | Plan,
    world: int = 4,
    dress: Dress | None = None,
    shuffle: random.Random | None = None,
    launcher: str = "torchrun",
    *,
    file_each: bool = False,
) -> ExitOutcome:
    """How that attempt is judged."""
    return judge_exit(attempt_of(plan, world, dress, shuffle, launcher, file_each=file_each))


def _mixed(texts: list[list[str]], chance: random.Random) -> list[str]:
    """The lines of all ranks as they may come into one log: each rank's own in their order."""
    left = [list(text) for text in texts if text]
    mixed: list[str] = []
    while left:
        one = chance.choice(left)
        mixed.append(one.pop(0))
        left = [text for text in left if text]
    return mixed
