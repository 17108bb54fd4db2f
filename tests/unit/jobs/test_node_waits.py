"""Launchers that have started no rank: whom they wait for, and who is none of them."""

from pathlib import Path

import pytest

from mldebug.core.model import Job
from mldebug.core.plugins import create_all
from mldebug_agents.jobs.ranks.discovery import Discovery, RankFinder
from mldebug_agents.jobs.ranks.node_waits import MAX_WAITING
from mldebug_agents.system.host import Host
from shared.jobs.proctree import BOOT, DirectPaths, Tree

TORCHRUN = ("python3", "/usr/bin/torchrun")
MODULE = ("python3", "-m", "torch.distributed.run")
STATIC = ("--nnodes", "4", "--node-rank", "1", "--master-addr", "n1", "--master-port=29501")
C10D = ("--nnodes=2:4", "--rdzv_backend=c10d", "--rdzv-endpoint", "n1:29400", "--rdzv_id", "exp7")
ACCELERATE = ("python3", "/usr/bin/accelerate", "launch", "--num_machines", "2")
SLURM = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4"}


def look(tree: Tree, finder: RankFinder | None = None) -> Discovery:
    host = Host(str(tree.root), lambda: BOOT + 3600.0)
    return (finder or RankFinder(host, DirectPaths(), "n1", create_all("launchers"))).find()


def waits(tmp_path: Path, *argv: str, **environ: str) -> Job | None:
    tree = Tree(tmp_path)
    tree.add(100, 1, "pt_elastic", argv=argv, environ=environ)
    return next(iter(look(tree).waiting), None)


@pytest.mark.parametrize(
    ("argv", "nodes", "rendezvous", "endpoint", "run_id", "name"),
    [
        ((*TORCHRUN, *STATIC, "/x/train.py", "--lr", "1"), 4, "static", "n1:29501", "", "train.py"),
        ((*MODULE, *C10D, "--standalone=0", "train.py"), 2, "c10d", "n1:29400", "exp7", "train.py exp7"),
        ((*TORCHRUN, "--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e:2379", "-m", "a.b"), 2, "etcd-v2", "e:2379", "", "a.b"),
        ((*ACCELERATE, "--main_process_ip", "n1", "--multi_gpu", "train.py"), 2, "static", "n1:29500", "", "train.py"),
    ],
)  # fmt: skip
def test_the_command_line_says_for_how_many_nodes_it_waits(
    tmp_path: Path, argv: tuple[str, ...], nodes: int, rendezvous: str, endpoint: str, run_id: str, name: str
) -> None:  # fmt: skip
    job = waits(tmp_path, *argv)
    assert job is not None
    assert job.waits is not None
    assert job.ranks == ()
    found = job.waits
    assert (found.nodes, found.rendezvous, found.endpoint, found.run_id) == (
        *(nodes, rendezvous, endpoint, run_id),
    )
    assert (job.name, job.launcher_pid, found.here) == (name, 100, 1)


def test_what_is_not_on_the_command_line_stands_in_its_variables(tmp_path: Path) -> None:
    job = waits(
        tmp_path, *TORCHRUN, "t.py", PET_NNODES="3", PET_RDZV_ENDPOINT="n1:1", PET_RDZV_ID="a"
    )
    assert job is not None
    assert job.waits is not None
    assert (job.waits.nodes, job.waits.endpoint, job.waits.run_id) == (3, "n1:1", "a")


def test_the_scheduler_says_which_nodes(tmp_path: Path) -> None:
    job = waits(tmp_path, *TORCHRUN, *STATIC, "t.py", **SLURM)
    assert job is not None
    assert job.node_list == "n[1-4]"


@pytest.mark.parametrize(
    "argv",
    [
        (*TORCHRUN, "--nproc-per-node", "8", "train.py"),
        (*TORCHRUN, "--nnodes", "1", "train.py"),
        (*TORCHRUN, "--nnodes", "1:4", "train.py"),
        (*TORCHRUN, "--standalone", "--nnodes", "2", "train.py"),
        (*TORCHRUN, "train.py", "--nnodes", "2"),  # an option of the script
        (*TORCHRUN, "--nnodes", "many", "train.py"),
        (*TORCHRUN, "--nnodes", "99999999999999999999", "train.py"),
        ("python3", "train.py", "--nnodes", "2"),
    ],
)
def test_a_run_of_one_node_waits_for_nobody(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert waits(tmp_path, *argv) is None


def test_a_launcher_with_a_rank_or_a_program_that_may_become_one_waits_no_more(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path)
    tree.add(100, 1, "pt_elastic", argv=(*TORCHRUN, *STATIC, "t.py"))
    tree.add(110, 100, torch=False)
    assert look(tree).waiting == ()


def test_copies_and_helpers_of_the_launcher_are_neither_nodes_nor_ranks(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    argv = (*TORCHRUN, *STATIC, "t.py")
    tree.add(100, 1, "pt_elastic", argv=argv)
    tree.add(101, 100, "pt_elastic", argv=argv, forked_from=100)
    helper = "from multiprocessing.resource_tracker import main;main(5)"
    tree.add(102, 100, argv=("python3", "-c", helper))
    (job,) = look(tree).waiting
    assert job.waits is not None
    assert job.waits.here == 1


def test_two_launchers_of_one_run_are_two_nodes_and_other_runs_are_apart(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for pid, user, endpoint in (
        (100, 0, "n1:1"),
        (200, 0, "n1:1"),
        (300, 7, "n1:1"),
        (400, 0, "n1:2"),
    ):
        options = ("--nnodes", "3", "--rdzv-endpoint", endpoint, "t.py")
        tree.add(pid, 1, "pt_elastic", argv=(*TORCHRUN, *options), uid=user)  # fmt: skip
    found = {job.launcher_pid: job.waits.here for job in look(tree).waiting if job.waits}
    assert found == {100: 2, 300: 1, 400: 1}


def test_a_launcher_whose_ranks_are_gone_waits_since_then(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(100, 1, "pt_elastic", argv=(*TORCHRUN, *STATIC, "t.py"))
    now = [BOOT + 3600.0]
    host = Host(str(tmp_path), lambda: now[0])
    finder = RankFinder(host, DirectPaths(), "n1", create_all("launchers"))
    began = finder.find().waiting[0].started_at
    tree.add(110, 100)
    assert finder.find().waiting == ()
    tree.end(110)
    now[0] += 60
    (again,) = finder.find().waiting
    assert again.started_at == BOOT + 3600.0 > began


def test_launchers_of_one_user_hide_none_of_another(tmp_path: Path) -> None:
    """So many are watched, the oldest first: with a hundred idle ones of his own a user kept all others' from being told."""
    tree = Tree(tmp_path)
    for pid in [*range(100, 200), 900]:
        argv = (*TORCHRUN, "--nnodes", "2", "--rdzv-endpoint", f"n1:{pid}", "--rdzv-id", f"{pid}", "t.py")  # fmt: skip
        tree.add(pid, 1, "pt_elastic", argv=argv, uid=1002 if pid == 900 else 1001)
    waiting = look(tree).waiting
    assert len(waiting) == MAX_WAITING
    assert [job.launcher_pid for job in waiting if job.uid == 1002] == [900]
