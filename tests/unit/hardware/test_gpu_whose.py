"""The part `whose` of tests/gpu/validate.py, on CPUs beside two GPUs of the fake library: two jobs, a GPU each, and whom the metrics give it to."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fakenvml.library import FakeNvml
from gpu import validate
from gpu.page import page
from gpu.parts import whose

CARDS = ("GPU-00000001-0000-4000-8000-000000000001", "GPU-00000002-0000-4000-8000-000000000002")
HELD = 3 << 30


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs that train, and an nvidia-smi that lists them and no process, as in a container."""
    folder = tmp_path / "fake"
    folder.mkdir()
    one = FakeNvml(folder, "training")
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) printf "{CARDS[0]}\\n{CARDS[1]}\\n";; esac\n')  # fmt: skip
    tool.chmod(0o755)
    for number, uuid in enumerate(CARDS):
        one.set(f"nvmlDeviceGetUUID {number}", uuid)
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(one.library).parent))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv(whose.SPAN, "1")
    monkeypatch.setattr(whose, "EVERY", 0.5)
    return one


@contextmanager
def driver(fake: FakeNvml, *, swapped: bool) -> Iterator[None]:
    """The driver lists each rank on the GPU that its environment names; swapped: on the other one."""
    over = threading.Event()

    def list_ranks() -> None:
        while not over.wait(0.2):
            for number, uuid in enumerate(reversed(CARDS) if swapped else CARDS):
                pids = _ranks(uuid)
                fake.set(f"nvmlDeviceGetComputeRunningProcesses_v3 {number}", *[value for pid in pids for value in (pid, HELD)])  # fmt: skip

    thread = threading.Thread(target=list_ranks)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ranks(uuid: str) -> list[int]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            its = one.environ()
            if its.get("CUDA_VISIBLE_DEVICES") == uuid and "LOCAL_RANK" in its and "gpu.py" in " ".join(one.cmdline()):  # fmt: skip
                found.append(one.pid)
    return found


@pytest.mark.scenario
def test_each_gpu_is_given_to_the_rank_that_works_there(fake: FakeNvml, tmp_path: Path) -> None:
    with driver(fake, swapped=False):
        table = dict(whose.run(tmp_path, "--cpu"))
    assert [list(row["joined"]) for row in table["rows"]] == [[CARDS[1]], [CARDS[0]]]
    assert [row["memory_bytes"] for row in table["rows"]] == [[HELD], [HELD]]
    assert table["troubles"] == table["reports"] == []
    text = page({"parts": {"whose": {"status": "done", "data": table}}})
    assert f"| {CARDS[1]} |" in text
    assert "s: nothing." in text


@pytest.mark.scenario
def test_a_wrong_join_fails_the_part_after_all_is_told(fake: FakeNvml, tmp_path: Path) -> None:
    table: dict[str, Any] = {}
    with driver(fake, swapped=True), pytest.raises(AssertionError, match="not as it should be"):
        table.update(kept for kept in whose.run(tmp_path, "--cpu"))
    assert [row["right"] for row in table["rows"]] == [False, False]
    assert all("is not joined right" in one for one in table["troubles"])


def test_it_runs_only_where_named_and_ends_within_ten_minutes() -> None:
    assert "whose" in validate.ON_REQUEST
    assert validate.LIMITS["whose"] < 600
