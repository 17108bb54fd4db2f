"""A job that falls apart into two calls: one rank, or a quarter of them, took another branch; of larger parts nobody is named at more than `low`."""

from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Verdict

_C10D = "torch/distributed/distributed_c10d.py"


def stack(rank: int, odd: bool) -> str:
    call, line = ("all_reduce", 90) if odd else ("reduce_scatter_tensor", 88)
    return (
        f"Process {100 + rank}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread {100 + rank} (active): "MainThread"\n    {call} ({_C10D}:2810)\n    step (train.py:{line})\n    main (train.py:120)\n'
    )


@pytest.mark.parametrize(
    ("odd", "world", "most"),
    [
        (1, 3, Confidence.MEDIUM),
        (1, 4, Confidence.MEDIUM),
        (1, 8, Confidence.MEDIUM),
        (2, 8, Confidence.MEDIUM),
        (2, 5, Confidence.LOW),
        (3, 8, Confidence.LOW),
        (3, 7, Confidence.LOW),
        (7, 16, Confidence.LOW),
    ],
)
def test_how_surely_the_smaller_part_is_named(
    odd: int, world: int, most: Confidence, tmp_path: Path
) -> None:
    for rank in range(world):
        (tmp_path / f"rank{rank}.txt").write_text(stack(rank, rank < odd))
    found = judge(read_evidence(tmp_path)).report.diagnosis
    assert found.verdict is Verdict.COLLECTIVE_MISMATCH
    assert [one.rank for one in found.culprits] == list(range(odd))
    assert found.confidence is most
