"""Last words as people have posted them: who is named, and that what stands before a line never changes it."""

import json
import random

import pytest

from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.fieldcases import FIELD, Case, all_cases
from shared.diagnosis.fieldexits import Dress, outcome_of

EXITS = FIELD / "exits"
CASES: tuple[Case, ...] = next(some.cases for some in all_cases() if some.folder == EXITS)
MIXES = 200


def plain(rank: int, line: str) -> str:
    """As the rank writes it."""
    return line


def stamped(rank: int, line: str) -> str:
    """A scheduler's or a logger's time."""
    return f"2026-09-18 19:29:{len(line) % 60:02d},{rank}23 {line}"


def cri(rank: int, line: str) -> str:
    """containerd's log of a pod."""
    return f"2026-09-18T19:29:{len(line) % 60:02d}.123456789Z stderr F {line}"


def kubectl(rank: int, line: str) -> str:
    """`kubectl logs --prefix`."""
    return f"[pod/train-{rank // 2}/pytorch] {line}"


def compose(rank: int, line: str) -> str:
    """`docker compose logs`."""
    return f"worker-{rank // 2}-1  | {line}"


def pdsh(rank: int, line: str) -> str:
    """pdsh, as DeepSpeed starts it."""
    return f"node-7: {line}"


def ray(rank: int, line: str) -> str:
    """What Ray's driver writes before a worker's line."""
    return f"\x1b[36m(RayTrainWorker pid={4711 + rank}, ip=10.0.0.{rank})\x1b[0m {line}"


def coloured(rank: int, line: str) -> str:
    """rich and loguru."""
    return f"\x1b[1;31m{line}\x1b[0m"


def behind_bar(rank: int, line: str) -> str:
    """Rank 0's bar stands in the same line."""
    return f"\rEpoch 0:  50%|#####     | 500/1000 [10:00<10:00,  1.0it/s, loss=2.6]{line}"


def teed(rank: int, line: str) -> str:
    """`torchrun --tee 3`."""
    return f"[default{rank}]:{line}"


def tagged(rank: int, line: str) -> str:
    """`mpirun --tag-output`, with a time."""
    return f"Wed Jun 22 15:48:08 2026[1,{rank}]<stderr>:{line}"


def docker(rank: int, line: str) -> str:
    """Docker's json-file."""
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-09-18T19:29:44Z"})


DRESSES: tuple[Dress, ...] = (plain, stamped, cri, kubectl, compose, pdsh, ray, coloured, behind_bar, teed, tagged, docker)  # fmt: skip


def named(outcome: ExitOutcome) -> tuple[int, ...]:
    """Whom it names, however surely."""
    culprits = outcome.finding.culprits if outcome.finding else ()
    return tuple(sorted(one.rank for one in culprits if one.rank is not None))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dress", DRESSES, ids=lambda dress: dress.__name__)
def test_what_stands_before_a_line_never_changes_the_name(case: Case, dress: Dress) -> None:
    right = named(outcome_of(EXITS / case.input, case.world))
    assert named(outcome_of(EXITS / case.input, case.world, dress)) in (right, ())


def test_mixes_never_change_the_name() -> None:
    """Lines of all ranks in any order, some of them behind one thing, some behind another."""
    chance = random.Random(2026)
    for number in range(MIXES):
        case = CASES[number % len(CASES)]
        right = named(outcome_of(EXITS / case.input, case.world))
        worn = chance.choices(DRESSES, k=case.world)
        bars = random.Random(number)

        def dress(
            rank: int, line: str, worn: list[Dress] = worn, bars: random.Random = bars
        ) -> str:
            over = behind_bar if bars.random() < 0.1 else plain
            return over(rank, worn[rank](rank, line))

        shuffle = random.Random(number) if number % 2 else None
        found = named(outcome_of(EXITS / case.input, case.world, dress, shuffle))
        assert found in (right, ()), (number, case.name, [one.__name__ for one in worn], found)
