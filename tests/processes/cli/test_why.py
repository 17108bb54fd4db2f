"""`mldebug why` of two real runs under a real agent: what was planted between them is found, and nothing else."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    JOBS,
    MLDEBUG,
    clean_environment,
    environment_of_jobs,
    free_port,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
ARGUMENTS = ("--lr", "3e-4", "--name", "x", "--data", "/data/v1", "--batch-size", "64")
CHANGED = ("--lr", "1e-3", "--name", "x", "--data", "/data/v2", "--batch-size", "32")


class Site:
    """A user's code, in a repository, and the packages that it runs with."""

    def __init__(self, folder: Path) -> None:
        self.code, self.packages = folder / "code", folder / "lib/python3.11/site-packages"
        self.code.mkdir()
        shutil.copy(JOBS / "stepping.py", self.code / "train.py")
        library = self.packages / "torch/lib"
        library.mkdir(parents=True)
        (library / "libtorch_cpu.so").write_bytes(b"\x7fELF" + bytes(8192))
        self.install("torch", "2.8.0")
        (library.parent / "version.py").write_text("__version__ = '2.8.0'\n")
        self.install("numpy", "2.1.0")
        self.commit("first")

    def install(self, name: str, version: str) -> None:
        for old in self.packages.glob(f"{name}-*.dist-info"):
            old.rmdir()
        (self.packages / f"{name}-{version}.dist-info").mkdir()

    def commit(self, words: str) -> None:
        """As `git commit` leaves it; git itself is not needed here."""
        (self.code / ".git/refs/heads").mkdir(parents=True, exist_ok=True)
        (self.code / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (self.code / ".git/refs/heads/main").write_text(f"{commit_of(words)}\n")

    @contextmanager
    def run(
        self, folder: Path, *options: str, size: int = 2, more: Mapping[str, str] = {}
    ) -> Iterator[list[int]]:
        """A run of this code; its ranks' pids. At its end its ranks end by themselves, well."""
        folder.mkdir()
        stop = folder / "stop"
        argv = [sys.executable, "-u", "train.py", str(self.packages), *options]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}  # fmt: skip
        ranks = []
        with (folder / "job.log").open("wb") as log:
            for rank in range(size):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "STOP_FILE": str(stop)}
                environ = clean_environment(folder) | place | own | more
                ranks.append(subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.code, env=environ))  # fmt: skip
        try:
            yield [one.pid for one in ranks]
            stop.touch()
            assert [one.wait(30) for one in ranks] == [0] * size
        finally:
            for one in ranks:
                one.kill()
                one.wait(10)

    @contextmanager
    def torchrun(
        self, folder: Path, *options: str, size: int = 2, more: Mapping[str, str] = {}
    ) -> Iterator[None]:
        """The same under a real torchrun; at its end all end well."""
        folder.mkdir()
        stop = folder / "stop"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]  # fmt: skip
        environ = (
            environment_of_jobs(folder) | {"OMP_NUM_THREADS": "1", "STOP_FILE": str(stop)} | more
        )
        with (folder / "job.log").open("wb") as log:
            process = subprocess.Popen([*launcher, "train.py", str(self.packages), *options], stdout=log, stderr=log, cwd=self.code, env=environ)  # fmt: skip
        try:
            yield
            stop.touch()
            assert process.wait(60) == 0, (folder / "job.log").read_text()
        finally:
            process.kill()
            process.wait(10)


def commit_of(words: str) -> str:
    """The digits of the commit with these words."""
    return words.encode().hex().ljust(40, "0")[:40]


def why(agent: RunningAgent, *words: str) -> Any:
    argv = [*MLDEBUG, "why", "--config", str(agent.config), *words, "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, env=clean_environment(agent.folder))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_of(agent: RunningAgent, pids: Sequence[int]) -> str:
    """The id of the run with these ranks, once it is recorded."""

    def found() -> str:
        snap = agent.snapshot()
        return next((run.id for run in (snap.runs if snap else ()) if {*pids} <= {*run.ranks.values()}), "")  # fmt: skip

    id_: str = wait_for("the run", found, 30)
    wait_for("its record", lambda: id_ in [one["run"] for one in why(agent)], 60)
    return id_


def test_what_was_planted_between_two_runs_is_found_and_nothing_else(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with watching(tmp_path, settings(tmp_path)) as agent:
        same = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_" + "x1" * 20}
        with site.run(tmp_path / "a", *ARGUMENTS, more=same) as pids:
            first = run_of(agent, pids)
        with site.run(tmp_path / "b", *ARGUMENTS, more=same) as pids:
            again = run_of(agent, pids)
        found = why(agent, first, again)
        assert found["differences"] == []
        assert set(found["same"]) == {*("code", "arguments", "packages", "environment", "size", "machine")}  # fmt: skip
        site.install("numpy", "2.2.1")
        site.commit("second")
        with (site.code / "train.py").open("a") as script:
            script.write("# changed\n")
        other = {
            "NCCL_ALGO": "Tree",
            "OMP_NUM_THREADS": "4",
            "NCCL_P2P_DISABLE": "1",
            "HF_TOKEN": "hf_" + "y2" * 20,
        }
        with site.run(tmp_path / "c", *CHANGED, size=3, more=other) as pids:
            third = run_of(agent, pids)
            found = why(agent, again, third)
        printed = subprocess.run([*MLDEBUG, "why", again, "--config", str(agent.config)], check=False, capture_output=True, text=True, timeout=60, env=clean_environment(tmp_path)).stdout  # fmt: skip
    found = {(one["subject"], one["name"]): (one["before"], one["after"]) for one in found["differences"]}  # fmt: skip
    assert set(found) == {
        *(("code", "commit"), ("code", "script")),
        *(("arguments", "--lr"), ("arguments", "--data"), ("arguments", "--batch-size")),
        *(("packages", "numpy"), ("size", "ranks")),
        *(("environment", "NCCL_ALGO"), ("environment", "NCCL_P2P_DISABLE")),
        ("environment", "OMP_NUM_THREADS"),
    }
    assert len(found) == 10
    assert found["arguments", "--data"] == ("/data/v1", "/data/v2")
    assert found["arguments", "--batch-size"] == ("64", "32")
    assert found["arguments", "--lr"] == ("3e-4", "1e-3")
    assert found["packages", "numpy"] == ("2.1.0", "2.2.1")
    assert found["size", "ranks"] == ("2", "3")
    assert found["environment", "NCCL_P2P_DISABLE"] == ("not set", "1")
    assert found["code", "commit"] == (commit_of("first")[:12], commit_of("second")[:12])
    assert "Nothing that is recorded differs." in printed, (
        "against the run before it of the same job"
    )
    assert first in printed


def newest(agent: RunningAgent, known: Sequence[str], size: int) -> str:
    """The id of the run of so many ranks that is none of these, once it is recorded."""

    def found() -> str:
        snap = agent.snapshot()
        runs = snap.runs if snap else ()
        return next((run.id for run in runs if run.id not in known and len(run.ranks) == size), "")

    id_: str = wait_for("the run", found, 60)
    wait_for("its record", lambda: id_ in [one["run"] for one in why(agent)], 60)
    return id_


def test_two_runs_of_torchrun_differ_by_what_was_planted_and_by_nothing_of_the_launcher(tmp_path: Path) -> None:  # fmt: skip
    """Ports, ids and folders that torchrun makes anew for each run are no differences."""
    need_torch("torchrun is PyTorch's")
    site = Site(tmp_path)
    with watching(tmp_path, settings(tmp_path)) as agent:
        with site.torchrun(tmp_path / "a", *ARGUMENTS, more={"NCCL_ALGO": "Ring"}):
            first = newest(agent, (), 2)
        with site.torchrun(tmp_path / "b", *ARGUMENTS, more={"NCCL_ALGO": "Ring"}):
            again = newest(agent, (first,), 2)
        assert why(agent, first, again)["differences"] == []
        site.install("numpy", "2.2.1")
        with site.torchrun(tmp_path / "c", *CHANGED, size=3, more={"NCCL_ALGO": "Tree", "NCCL_P2P_DISABLE": "1"}):  # fmt: skip
            third = newest(agent, (first, again), 3)
            answer = why(agent, again, third)
    found = {(one["subject"], one["name"]): (one["before"], one["after"]) for one in answer["differences"]}  # fmt: skip
    assert found == {
        ("arguments", "--lr"): ("3e-4", "1e-3"),
        ("arguments", "--data"): ("/data/v1", "/data/v2"),
        ("arguments", "--batch-size"): ("64", "32"),
        ("packages", "numpy"): ("2.1.0", "2.2.1"),
        ("size", "ranks"): ("2", "3"),
        ("environment", "NCCL_ALGO"): ("Ring", "Tree"),
        ("environment", "NCCL_P2P_DISABLE"): ("not set", "1"),
    }
