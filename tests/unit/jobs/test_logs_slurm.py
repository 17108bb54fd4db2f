"""logs: of a user's many jobs under srun, each rank's output is that of its own srun."""

from pathlib import Path

import pytest

from mldebug.core.model import OpenFile, ProcessState
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.jobs.logs.pipes import connected_sockets
from mldebug_agents.system.host import Host

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
MINE, THEIRS = 901, 902  # sockets of slurmstepd and of its srun


def line(number: int, local: str, remote: str, inode: int) -> str:
    return f"  {number:2}: {local} {remote} 01 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"


STEP_END, SRUN_END = "0100007F:9C42", "0100007F:A0F1"
TABLE = HEAD + line(0, STEP_END, SRUN_END, MINE) + line(1, SRUN_END, STEP_END, THEIRS)


class Node(Host):
    """Processes as data, and the connections of slurmstepd."""

    def __init__(self, root: Path, tcp: str, *states: ProcessState) -> None:
        super().__init__(str(root))
        self.states = {state.pid: state for state in states}
        for state in states:
            folder = root / "proc" / str(state.pid)
            (folder / "net").mkdir(parents=True)
            fields = " ".join(["S", str(state.ppid), *["0"] * 48])
            (folder / "stat").write_text(f"{state.pid} ({state.name}) {fields}")
            (folder / "net" / "tcp").write_text(tcp)
            (folder / "fd").mkdir()

    def process_state(
        self, pid: int, *, threads: bool = True, files: bool = False, kernel_stacks: bool = False
    ) -> ProcessState | None:
        return self.states.get(pid)


def process(pid: int, ppid: int, name: str, *files: tuple[int, str, str, str]) -> ProcessState:
    opened = tuple(OpenFile(fd=fd, target=to, kind=kind, mode=mode) for fd, to, kind, mode in files)
    return ProcessState(pid=pid, ppid=ppid, name=name, state="S", files=opened)


RANK = process(10, 5, "python3", (1, "pipe:[7]", "pipe", "w"))
STEP = process(
    5, 2, "slurmstepd", (8, "pipe:[7]", "pipe", "r"), (9, f"socket:[{MINE}]", "socket", "rw")
)


def srun(pid: int, output: str, socket: int) -> ProcessState:
    sockets = (3, f"socket:[{socket}]", "socket", "rw")
    return process(pid, 2, "srun", (1, output, "file", "w"), sockets)


@pytest.mark.parametrize("mine", [30, 31])
def test_the_srun_at_the_other_end_of_the_connection(tmp_path: Path, mine: int) -> None:
    both = [srun(pid, f"/home/bob/{pid}.log", THEIRS if pid == mine else 77) for pid in (30, 31)]
    (place,) = LogFinder(Node(tmp_path, TABLE, STEP, RANK, *both)).find(RANK).places

    assert place.target == f"/home/bob/{mine}.log"


def test_no_log_rather_than_that_of_another_job(tmp_path: Path) -> None:
    both = [srun(pid, f"/home/bob/{pid}.log", 77) for pid in (30, 31)]
    found = LogFinder(Node(tmp_path, HEAD, STEP, RANK, *both)).find(RANK)

    assert found.places == ()
    assert "slurmstepd (pid 5)" in found.reason


def test_the_two_processes_of_one_srun_are_one(tmp_path: Path) -> None:
    both = [srun(pid, "/home/bob/job.log", 77) for pid in (30, 31)]
    places = LogFinder(Node(tmp_path, HEAD, STEP, RANK, *both)).find(RANK).places

    assert {place.target for place in places} == {"/home/bob/job.log"}


def test_both_ends_of_a_connection_one_of_them_in_the_table_of_ipv6() -> None:
    mapped = "0000000000000000FFFF0000"
    six = HEAD + line(0, f"{mapped}{SRUN_END}", f"{mapped}{STEP_END}", THEIRS)
    found = connected_sockets([HEAD + line(0, STEP_END, SRUN_END, MINE), six])

    assert found == {
        f"socket:[{MINE}]": f"socket:[{THEIRS}]",
        f"socket:[{THEIRS}]": f"socket:[{MINE}]",
    }


@pytest.mark.parametrize("table", ["", HEAD, HEAD + "x\n", HEAD + line(0, STEP_END, SRUN_END, 0)])
def test_tables_that_tell_nothing(table: str) -> None:
    assert connected_sockets([table]) == {}
