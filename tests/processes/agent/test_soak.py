"""Two minutes of jobs that come, train, hang, die and go: the agent is as large afterwards as before.

The short version of tests/bench/soak.py, which measures the agent after each wave of jobs, when it watches nothing. As root it
runs in a pid namespace of its own: other jobs of the machine are none of its business.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.soak import FAST, KINDS, Size, slope, verdict

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]

TESTS = Path(__file__).parents[2]
WAVES = 15
WARM = 6  # waves until everything that is kept once is there
# KiB a job, of the agent alone and with its children, of which one more or less counts three megabytes: histories of 64 runs that are over,
# which the short form just fills (silence, GPU use and waits are kept of them, too), and Python's heap; 26 and 46 were measured
GROWTH, WITH_CHILDREN = 32.0, 56.0


@pytest.fixture(scope="module")
def soak_sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the soak has found."""
    file = tmp_path_factory.mktemp("soak") / "sizes.json"
    argv = [sys.executable, str(TESTS / "bench" / "soak.py"), "--fast", "--waves", str(WAVES)]
    done = subprocess.run(
        [*argv, "--json", str(file)], env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def sizes(soak_sizes: dict[str, list[dict[str, float]]]) -> list[Size]:
    """The agent's size after each wave."""
    return [Size(**one) for one in soak_sizes["sizes"]]  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_jobs(sizes: list[Size]) -> None:
    later = sizes[WARM:]
    # how many children wait for a next question is no growth: waves that had as many are compared
    usual = Counter(one.processes for one in later).most_common(1)[0][0]
    alike = [one for one in later if one.processes == usual]
    own = 1024 * slope(later, lambda one: one.rss, lambda one: one.lives)
    grown = 1024 * slope(alike, lambda one: one.memory, lambda one: one.lives)
    assert own < GROWTH, f"{own:.1f} KiB a job\n{verdict(sizes)}"
    assert grown < WITH_CHILDREN, f"{grown:.1f} KiB a job\n{verdict(sizes)}"


@pytest.mark.parametrize(
    ("of", "spare"),
    [
        # a child that waits for its next question holds seven; how many there may be is the third test
        pytest.param(lambda one: one.files - 7 * one.processes, 4, id="fds"),
        pytest.param(lambda one: one.threads, 12, id="threads"),  # pools keep some for later
        pytest.param(lambda one: one.processes, 1, id="processes"),
    ],
)
def test_counts_do_not_grow(of: Callable[[Size], int], spare: int, sizes: list[Size]) -> None:
    """Neither from start to end, nor by and by: one job in twenty that leaves something behind is seen."""
    first, last = sizes[WARM : WARM + 4], sizes[-4:]
    assert min(map(of, last)) <= min(map(of, first)) + spare, verdict(sizes)
    grown = slope(sizes[WARM:], of, lambda one: one.lives)
    assert grown < 0.05, f"{grown:.3f} a job\n{verdict(sizes)}"


def test_nothing_is_remembered_of_jobs_that_are_gone(soak_sizes: dict[str, int]) -> None:
    """But of the last wave, whose ends may not be judged yet."""
    assert soak_sizes["remembered"] <= FAST.each * len(KINDS)
