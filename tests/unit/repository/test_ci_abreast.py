"""How many parts of `.ci/run` run abreast: four, and more only where the cores have idled."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.system.patience import PATIENCE

ROOT = Path(__file__).parents[3]
SECONDS = 2  # the cores are looked at
CORES = "cpu 900 0 90 {} 0 0 0 0 0 0\n"  # as in /proc/stat; the fourth number is of idle time

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason=".ci/run is for root")


@contextmanager
def part_that_waits(streams: Path, others: int) -> Iterator[subprocess.Popen[bytes]]:
    """It would like to run beside so many others; the cores have computed all the time."""
    (streams / "abreast").mkdir()
    for number in range(others):
        (streams / "abreast" / f"real-{number}").touch()
    (streams / "cores").write_text(CORES.format(10))
    own = {"STREAMS": str(streams), "ENDS": str(int(time.time()) + 60), "CORES": str(streams / "cores")}  # fmt: skip
    argv = ["bash", ".ci/run", "turn_with_room", "new", "true"]
    part = subprocess.Popen(argv, cwd=ROOT, env=os.environ | own | {"IDLE_SECONDS": str(SECONDS)})
    try:
        yield part
    finally:
        (streams / "interrupted").touch()
        part.wait(timeout=30 * PATIENCE)


def has_run(streams: Path) -> bool:
    return (streams / "summary").exists()


def ends(part: subprocess.Popen[bytes]) -> int:
    return part.wait(timeout=30 * PATIENCE)


def test_beside_three_it_begins_at_once(tmp_path: Path) -> None:
    with part_that_waits(tmp_path, 3) as part:
        assert ends(part) == 0
    assert has_run(tmp_path)
    assert not (tmp_path / "abreast/new").exists()


def test_beside_four_it_waits_for_the_end_of_one(tmp_path: Path) -> None:
    with part_that_waits(tmp_path, 4) as part:
        time.sleep(2 * SECONDS + 1)  # long enough for who looks at idle cores
        assert not has_run(tmp_path)
        (tmp_path / "abreast/real-2").unlink()
        assert ends(part) == 0
    assert has_run(tmp_path)


def test_beside_four_that_leave_the_cores_idle_it_begins(tmp_path: Path) -> None:
    with part_that_waits(tmp_path, 4) as part:
        time.sleep(1)
        (tmp_path / "cores.new").write_text(CORES.format(10_000))
        (tmp_path / "cores.new").rename(tmp_path / "cores")
        assert ends(part) == 0
    assert has_run(tmp_path)


def test_an_interrupted_run_begins_nothing_that_waits(tmp_path: Path) -> None:
    with part_that_waits(tmp_path, 4) as part:
        time.sleep(0.5)
        (tmp_path / "interrupted").touch()
        assert ends(part) == 255
    assert not has_run(tmp_path)
