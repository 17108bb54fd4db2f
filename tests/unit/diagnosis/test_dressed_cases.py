"""A batch from public threads, dressed: other prefixes, another order, lines of ranks mixed, clocks, colours and bars. The answer stays right."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shared.diagnosis.fieldcases import FIELD, Case, all_cases, answer, faults_of

STACKS = (
    *("mcore-cp-alltoall-one-in-data", "zero3-backward-loss-item", "item-idle-with-blocking-sync", "handle-wait-of-one", "mpi4py-bcast-and-reader", "wedged-rack-launch"),
    *("rllib-worker-idle", "verl-log-prob-timeout", "titan-half-and-half", "lightning-debugger", "nemo-grad-norm-item", "one-sleeps-by-its-name"),
)  # fmt: skip
LOGS = (
    *("sigbus-of-two", "all-one-no-words", "sigbus-of-one", "verl-repeated-3", "verl-worker-died-62", "hvd-signal-9", "hvd-25-illegal", "hvd-init-segv"),
    *("ucx-all-endpoint", "jax-task-37", "ds-minus-9", "fingerprint-info-lines", "own-and-resets", "switch-dies"),
)  # fmt: skip
Dress = Callable[[Path, Path], None]
CASES = {case.name: case for some in all_cases() if some.folder.name in ("posted", "logs") for case in some.cases}  # fmt: skip
JOINED = re.compile(r'File "|^\s|Traceback|what\(\)|CollectiveF')
"""Lines that a bar may not stand before: they go on with the one above."""


def headings(given: Path, made: Path) -> None:
    """All in one file below headings, in another order."""
    files = sorted(given.iterdir())
    random.Random(given.name).shuffle(files)
    (made / "all.txt").write_text("".join(f"== rank {one.stem[4:]} ==\n{one.read_text()}\n" for one in files))  # fmt: skip


def labelled(given: Path, made: Path) -> None:
    """As `srun --label` prints it: the lines of all ranks mixed."""
    chance = random.Random(given.name)
    left = [[f"{one.stem[4:]}: {line}" for line in one.read_text().split("\n")] for one in sorted(given.iterdir())]  # fmt: skip
    mixed = []
    while any(left):
        mixed.append(chance.choice([some for some in left if some]).pop(0))
    (made / "srun.log").write_text("\n".join(mixed) + "\n")


def clocked(given: Path, made: Path) -> None:
    """A time before each line, as Kubernetes writes it."""
    lines = (given / "job.log").read_text().split("\n")
    (made / "job.log").write_text("\n".join(f"2026-01-09T16:45:50.{at:03}Z {line}" if line else line for at, line in enumerate(lines)))  # fmt: skip


def coloured(given: Path, made: Path) -> None:
    """Bars between the lines, and each in colour."""
    lines = []
    for at, line in enumerate((given / "job.log").read_text().split("\n")):
        if at % 4 == 0 and not JOINED.search(line):
            lines.append(f" {at}%|#   | {at}/100 [00:0{at % 10}<01:00]")
        lines.append(f"\x1b[31m{line}\x1b[0m" if line else line)
    (made / "job.log").write_text("\n".join(lines))


def faults(case: Case, made: Path) -> list[str]:
    return faults_of(case, answer(made.parent, msgspec.structs.replace(case, input=made.name)))


@pytest.mark.parametrize("dress", [headings, labelled], ids=["headings", "srun"])
@pytest.mark.parametrize("name", STACKS)
def test_dressed_stacks_get_the_same_answer(name: str, dress: Dress, tmp_path: Path) -> None:
    dress(FIELD / "posted" / name, tmp_path)
    assert faults(CASES[name], tmp_path) == []


@pytest.mark.parametrize("dress", [clocked, coloured], ids=["clock", "colour"])
@pytest.mark.parametrize("name", LOGS)
def test_dressed_logs_get_the_same_answer(name: str, dress: Dress, tmp_path: Path) -> None:
    dress(FIELD / "logs" / name, tmp_path)
    assert faults(CASES[name], tmp_path) == []
