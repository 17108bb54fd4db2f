"""How many parts of `.ci/run` run abreast: three that wait and one that computes, and more where the cores have time for them."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.system.patience import PATIENCE

ROOT = Path(__file__).parents[3]
SECONDS = 2  # the cores are looked at
CORES = "cpu  900 {nice} 90 {idle} 0 0 0 0 0 0\n"  # as in /proc/stat
TURNS = {"waiting": "waits_its_turn", "computing": "computes_its_turn"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason=".ci/run is for root")


class Part:
    """One that would like to run beside so many of its kind; the cores have computed all the time."""

    def __init__(self, streams: Path, kind: str, others: int) -> None:
        self.streams = streams
        (streams / kind).mkdir()
        for number in range(others):
            (streams / kind / f"other-{number}").touch()
        self.cores(nice=10, idle=10)
        own = {"STREAMS": str(streams), "ENDS": str(int(time.time()) + 60), "CORES": str(streams / "cores")}  # fmt: skip
        argv = ["bash", ".ci/run", TURNS[kind], "new", "sh", "-c", f"cat /proc/self/stat >{streams}/ran; env >{streams}/environment"]  # fmt: skip
        self.process = subprocess.Popen(argv, cwd=ROOT, env=os.environ | own | {"IDLE_SECONDS": str(SECONDS)})  # fmt: skip

    def cores(self, *, nice: int, idle: int) -> None:
        (self.streams / "new").write_text(CORES.format(nice=nice, idle=idle))
        (self.streams / "new").rename(self.streams / "cores")

    @property
    def has_run(self) -> bool:
        return (self.streams / "ran").exists()

    def ends(self) -> int:
        return self.process.wait(timeout=30 * PATIENCE)

    def looks_in_vain(self) -> bool:
        """It has looked at the cores thrice, and has not begun."""
        time.sleep(2 * SECONDS + 1)
        return not self.has_run


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str, int], Part]]:
    parts = []

    def start(kind: str, others: int) -> Part:
        parts.append(Part(tmp_path, kind, others))
        return parts[-1]

    yield start
    (tmp_path / "interrupted").touch()
    for part in parts:
        part.ends()


@pytest.mark.parametrize(("kind", "others"), [("waiting", 2), ("computing", 0)])
def test_beside_fewer_it_begins_at_once(begin: Callable[[str, int], Part], kind: str, others: int) -> None:  # fmt: skip
    part = begin(kind, others)
    assert part.ends() == 0
    assert part.has_run
    assert not (part.streams / kind / "new").exists()


@pytest.mark.parametrize(("kind", "others"), [("waiting", 3), ("computing", 1)])
def test_beside_as_many_it_waits_for_the_end_of_one(begin: Callable[[str, int], Part], kind: str, others: int) -> None:  # fmt: skip
    part = begin(kind, others)
    assert part.looks_in_vain()
    (part.streams / kind / "other-0").unlink()
    assert part.ends() == 0
    assert part.has_run


@pytest.mark.parametrize(("kind", "others"), [("waiting", 3), ("computing", 1)])
def test_where_the_cores_idle_it_begins(begin: Callable[[str, int], Part], kind: str, others: int) -> None:  # fmt: skip
    part = begin(kind, others)
    time.sleep(1)
    part.cores(nice=10, idle=10_000)
    assert part.ends() == 0
    assert part.has_run


@pytest.mark.parametrize(("kind", "begins"), [("waiting", True), ("computing", False)])
def test_what_those_that_compute_take_is_left_for_who_waits(begin: Callable[[str, int], Part], kind: str, begins: bool) -> None:  # fmt: skip
    """They are nice: they take what nobody else wants, so it does not hold up a part that waits; but one of them is enough then."""
    part = begin(kind, 3)
    time.sleep(1)
    part.cores(nice=10_000, idle=10)
    if begins:
        assert part.ends() == 0
    assert begins or part.looks_in_vain()


@pytest.mark.parametrize(("kind", "nice"), [("waiting", 0), ("computing", 3)])
def test_who_computes_is_nice_to_who_waits(begin: Callable[[str, int], Part], kind: str, nice: int) -> None:  # fmt: skip
    """In a session of its own: the kernel shares the cores out by session first."""
    part = begin(kind, 0)
    assert part.ends() == 0
    fields = (part.streams / "ran").read_text().rpartition(")")[2].split()
    assert int(fields[16]) == nice + os.getpriority(os.PRIO_PROCESS, 0)
    assert (int(fields[3]) != os.getsid(0)) == (kind == "computing")
    assert (
        "HOW=" not in (part.streams / "environment").read_text()
    )  # a part's own parts are started as they ask


def test_an_interrupted_run_begins_nothing_that_waits(begin: Callable[[str, int], Part]) -> None:
    part = begin("waiting", 3)
    time.sleep(0.5)
    (part.streams / "interrupted").touch()
    assert part.ends() == 255
    assert not part.has_run
