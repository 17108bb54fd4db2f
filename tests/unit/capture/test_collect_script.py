"""deploy/collect.sh: what the kernel tells of ranks on a node without Python is read by `mldebug diagnose` elsewhere."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Diagnosis

SCRIPT = Path(__file__).parents[3] / "deploy" / "collect.sh"
NFS = ("rpc_wait_bit_killable+0x11/0x60 [sunrpc]", "nfs4_proc_getattr+0x69/0x100 [nfsv4]", "do_syscall_64+0x5b/0x80")  # fmt: skip
FUTEX = ("futex_wait_queue+0x68/0x90", "do_futex+0x125/0x190", "do_syscall_64+0x5b/0x80")


class Process(NamedTuple):
    """One process as /proc shows it. `stack`: None where only root may read it."""

    pid: int
    parent: int = 1
    name: str = "python3"
    variables: str = ""
    state: str = "S (sleeping)"
    stack: tuple[str, ...] | None = FUTEX
    wchan: str = "futex_wait_queue"


def collected(root: Path, *processes: Process) -> subprocess.CompletedProcess[str]:
    """What the script prints of a made-up /proc with these processes; no other tool is on its PATH."""
    for one in processes:
        folder = root / "proc" / str(one.pid)
        folder.mkdir(parents=True)
        (folder / "environ").write_bytes(b"\0".join([b"SECRET=s3cret", *one.variables.encode().split(), b""]))  # fmt: skip
        (folder / "status").write_text(f"Name:\t{one.name}\nState:\t{one.state}\nPPid:\t{one.parent}\n")  # fmt: skip
        (folder / "wchan").write_text(one.wchan)
        if one.stack is not None:
            (folder / "stack").write_text("".join(f"[<0>] {line}\n" for line in one.stack))
    tools = root / "bin"
    tools.mkdir()
    for name in ("tr", "sed", "cat", "uname", "id"):
        (tools / name).symlink_to(shutil.which(name) or name)
    sh = shutil.which("sh") or "/bin/sh"
    return subprocess.run([sh, str(SCRIPT)], env={"PROC": str(root / "proc"), "PATH": str(tools)}, capture_output=True, text=True, check=False, timeout=60)  # fmt: skip


def judged(root: Path, *processes: Process) -> Diagnosis:
    done = collected(root, *processes)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout
    folder = root / "evidence"
    folder.mkdir()
    (folder / "node1.txt").write_text(done.stdout)
    return judge(read_evidence(folder)).report.diagnosis


def ranks(**of_rank_2: object) -> list[Process]:
    return [
        Process(4000 + n, variables=f"RANK={n} LOCAL_RANK={n} WORLD_SIZE=4", **(of_rank_2 if n == 2 else {}))  # type: ignore[arg-type]
        for n in range(4)
    ]  # fmt: skip


def names(found: Diagnosis) -> tuple[str, list[int]]:
    return str(found.verdict), [one.rank for one in found.culprits]


def test_a_rank_that_waits_for_a_filesystem_is_named(tmp_path: Path) -> None:
    found = judged(tmp_path, *ranks(stack=NFS, state="D (disk sleep)"))
    assert names(found) == ("rank_blocked_io", [2]), found.summary


def test_without_root_the_wait_channel_tells_it(tmp_path: Path) -> None:
    some = [one._replace(stack=None) for one in ranks(wchan="rpc_wait_bit_killable")]
    found = judged(tmp_path, *some)
    assert names(found) == ("rank_blocked_io", [2]), found.summary


@pytest.mark.parametrize("stack", [None, ("do_signal_stop+0x16f/0x210", "get_signal+0x22d/0x840")])
def test_a_stopped_rank_is_named(stack: tuple[str, ...] | None, tmp_path: Path) -> None:
    found = judged(tmp_path, *ranks(state="T (stopped)", stack=stack, wchan="0"))
    assert names(found) == ("rank_stopped", [2]), found.summary


def test_ranks_that_are_all_alike_name_nobody(tmp_path: Path) -> None:
    assert names(judged(tmp_path, *ranks())) == ("unknown", [])


def test_launchers_shells_and_workers_are_left_out(tmp_path: Path) -> None:
    """All have the rank's variables: Slurm's tasks, the shell that starts a rank, the workers of its DataLoader."""
    some = ranks(state="T (stopped)", wchan="0")
    beside = [
        Process(100, name="torchrun", variables="SLURM_PROCID=0 LOCAL_RANK=0"),
        Process(101, name="bash", variables="RANK=1 WORLD_SIZE=4"),
        Process(5000, parent=4001, name="pt_data_worker", variables="RANK=1 WORLD_SIZE=4", state="T (stopped)"),
    ]  # fmt: skip
    done = collected(tmp_path, *beside, *(one._replace(parent=101) for one in some))
    assert [line for line in done.stdout.split("\n") if line.startswith("== pid")] == [f"== pid {4000 + n} ==" for n in range(4)]  # fmt: skip


def test_no_rank_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    done = collected(tmp_path, Process(7, variables="HOME=/root"))
    assert done.returncode == 1
    assert "try as root, or name PIDs" in done.stderr


def test_a_real_process_is_told(tmp_path: Path) -> None:
    done = subprocess.run(["sh", str(SCRIPT), str(os.getpid())], env={**os.environ, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    assert f"== pid {os.getpid()} ==\n" in done.stdout
    assert "\nState: S" in done.stdout
