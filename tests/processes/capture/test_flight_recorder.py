"""`mldebug flight-recorder` on what real ranks have written, and beside PyTorch's own analyser."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.files.folder import read_folder
from processes.harness import environment_of_jobs
from processes.needs import need_torch
from shared.capture.dumps import Dump, late, not_started, odd_size, stuck, write

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("real ranks write dumps with PyTorch")

JOBS = Path(__file__).parents[2] / "jobs"


def judged(folder: Path) -> Conclusion:
    return analyse(read_folder(folder).records)


def run(*command: str, **more: Any) -> str:
    done = subprocess.run(
        command,
        **more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("fault", "kind", "culprits", "sequence"),
    [
        ("late", "missing_rank", (2,), 6),
        ("other", "mismatch", (1,), 6),
        ("none", "healthy", (), None),
    ],
)
def test_what_ranks_on_gloo_write(
    fault: str, kind: str, culprits: tuple[int, ...], sequence: int | None, tmp_path: Path
) -> None:
    """Both spellings; two groups, of which gloo tells no members."""
    for name in ("json", "pickle"):
        (tmp_path / name).mkdir()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    job = (sys.executable, *torchrun, str(JOBS / "recorded.py"), fault, str(tmp_path))
    run(*job, env=environment_of_jobs(tmp_path) | {"OMP_NUM_THREADS": "1"})
    for name in ("json", "pickle"):
        found = judged(tmp_path / name)
        assert (found.kind, found.culprits, found.seq) == (kind, culprits, sequence), (name, found)
    if fault == "late":
        assert "wait at _last (recorded.py:" in judged(tmp_path / "pickle").explanation


def test_beside_pytorch(tmp_path: Path) -> None:
    """Where it names somebody rightly, ours names the same; where it says nothing or fails, ours has an answer."""
    cases: dict[str, Callable[[], dict[int, Dump]]] = {
        "late": late, "other": lambda: odd_size(2), "behind": not_started, "stuck": stuck,
        "lost": lambda: {rank: one for rank, one in late(2).items() if rank != 2},
    }  # fmt: skip
    folders = {name: write(tmp_path / name, make()) for name, make in cases.items()}
    output = run(sys.executable, str(JOBS / "fr_trace.py"), "trace_", *map(str, folders.values()))
    parts = re.split(r"^# (.+)$", output, flags=re.MULTILINE)[1:]
    theirs = {Path(name).name: text for name, text in zip(parts[::2], parts[1::2], strict=True)}
    ours = {name: judged(folder) for name, folder in folders.items()}

    assert "missing ranks: {2}" in theirs["late"]
    assert (ours["late"].kind, ours["late"].culprits) == ("missing_rank", (2,))
    assert "COLLECTIVE_STATE_MISMATCH" in theirs["behind"]
    assert (ours["behind"].kind, ours["behind"].culprits) == ("stream_behind", (2,))
    assert "SIZE_OR_SYNTAX_MISMATCH" in theirs["other"]
    assert (ours["other"].kind, ours["other"].culprits) == ("mismatch", (2,))
    assert "sequence number" not in theirs["stuck"]
    assert (ours["stuck"].kind, ours["stuck"].seq) == ("frozen", 4)
    assert "Missing dump files" in theirs["lost"]
    assert (ours["lost"].kind, ours["lost"].culprits) == ("no_dump", (2,))
