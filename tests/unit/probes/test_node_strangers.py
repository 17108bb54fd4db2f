"""Who else wants a node while a probe over several nodes runs there: asked of real processes and of an nvidia-smi that tells what it likes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug_agents.probes.inside import strangers as inside
from mldebug_agents.probes.inside.strangers import Smi, Strangers, is_rank, ranks_here, strangers
from shared.system.hung import wait_until

RANK = {"RANK": "0", "WORLD_SIZE": "2"}


@contextmanager
def sleeper(program: str = sys.executable, own_group: bool = True, **env: str) -> Iterator[int]:
    """A process that waits; Python under the name that a Python has."""
    words = [program, "-S", "-c", "input()"] if program == sys.executable else [program, "60"]
    with subprocess.Popen(
        words, env={**os.environ, **env}, stdin=subprocess.PIPE, start_new_session=own_group
    ) as child:
        try:
            words_told = b"\0".join(map(str.encode, words)) + b"\0"
            wait_until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes() == words_told)
            yield child.pid
        finally:
            child.kill()


def test_a_rank_is_a_python_with_the_variables_of_one() -> None:
    with sleeper(**RANK) as rank, sleeper() as other, sleeper("/bin/sleep", **RANK) as shell:
        assert [is_rank(pid) for pid in (rank, other, shell)] == [True, False, False]
        assert rank in ranks_here()
    assert not is_rank(rank)


def test_our_own_ranks_are_no_strangers() -> None:
    with sleeper(own_group=False, **RANK) as own:
        assert not is_rank(own)
        assert list(strangers([own, 4_194_305])) == []
    with sleeper() as other:
        assert list(strangers([other])) == [other]


def test_a_rank_that_comes_later_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[int] = []
    monkeypatch.setattr(inside, "pids", lambda: here)
    requests = Strangers(gpus=False)
    assert requests.look() == ""
    with sleeper(**RANK) as rank:
        here.append(rank)
        assert requests.look() == f"a training job runs on this node (pid {rank})"


def test_old_processes_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "SETTLED", -1.0)
    with sleeper(**RANK) as rank:
        monkeypatch.setattr(inside, "pids", lambda: [rank])
        assert Strangers(gpus=False).look() == ""


def test_who_computes_is_told_by_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(inside, "ASK_EVERY", 0.0)
    monkeypatch.setattr(inside, "pids", list[int])
    with sleeper() as other:
        tool.write_text(f"#!/bin/sh\necho {os.getpid()}; echo '[N/A]'; echo {other}\n")
        tool.chmod(0o755)
        requests = Strangers(gpus=True)
        wait_until(lambda: requests.look() == f"a process computes on a GPU (pid {other})")


def test_an_nvidia_smi_that_hangs_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(inside, "ASK_EVERY", 0.0)
    smi = Smi()
    wait_until(lambda: smi.answer() == [] and (tmp_path / "starts").exists())
    assert [smi.answer() for _ in range(5)] == [[]] * 5
    assert (tmp_path / "starts").read_text() == "x\n"
    assert smi.query is not None
    smi.query.kill()
    smi.query.communicate()


def test_without_nvidia_smi_nobody_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = Smi()
    assert [smi.answer(), smi.answer()] == [[], []]


def test_ranks_of_the_same_torchrun_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has a process group of its own."""
    monkeypatch.setattr(os, "getppid", os.getpid)  # as one of them sees the others
    with sleeper(**RANK) as sibling:
        assert sibling in ranks_here()
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        assert sibling not in ranks_here()
        assert list(strangers([sibling])) == []


def test_the_first_look_waits_for_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sleeper() as other:
        slow = tmp_path / "nvidia-smi"
        slow.write_text(f"#!/bin/sh\nsleep 1\necho {other}\n")
        slow.chmod(0o755)
        monkeypatch.setattr(inside, "SMI", (str(slow),))
        monkeypatch.setattr(inside, "pids", list)
        assert Strangers(gpus=True).first_look() == f"a process computes on a GPU (pid {other})"
        assert Strangers(gpus=False).first_look() == ""
