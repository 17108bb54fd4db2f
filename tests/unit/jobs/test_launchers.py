"""The launchers: environments as they really are, and what each must read out of them."""

from collections.abc import Mapping

import pytest

from mldebug.core.plugins import create_all, names, summary
from mldebug_agents.cluster.peers.coordinator_search import listed
from mldebug_agents.jobs.launcher import RankClaim, runs, script_of
from mldebug_agents.jobs.launchers.slurm import tasks_here

LAUNCHERS = create_all("launchers")

TORCHRUN = {
    "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "5", "ROLE_NAME": "default", "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "exp7",
    "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
DEEPSPEED = {
    "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_SIZE": "8", "CROSS_RANK": "1", "CROSS_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "6", "SLURM_NPROCS": "6",
    "SLURM_JOB_ID": "88", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-h-12@1", "PMIX_RANK": "2",
}  # fmt: skip
HYDRA = {
    "PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2", "PMI_RANK": "0",
}  # fmt: skip
JAX = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "3", "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}
MAXTEXT = {
    "NODE_RANK": "2",
    "NNODES": "4",
    "JAX_COORDINATOR_IP": "10.0.0.1",
    "JAX_COORDINATOR_PORT": "1234",
}
PLAIN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
POD = {"RANK": "1", "WORLD_SIZE": "2", "PET_NPROC_PER_NODE": "8", "MASTER_ADDR": "job-master-0"}


def strongest(environ: Mapping[str, str], argv: tuple[str, ...] = ("python", "t.py")) -> RankClaim:
    """The claim that counts."""
    found = [claim for launcher in LAUNCHERS if (claim := launcher.identify(environ, argv))]
    return max(found, key=lambda claim: claim.priority)


@pytest.mark.parametrize(
    ("environ", "launcher", "rank", "world", "local", "local_world", "run_id", "attempt", "master"),
    [
        (TORCHRUN, "torchrun", 5, 8, 1, 4, "exp7", 2, "node1:29500"),
        (TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "bf16"}, "accelerate", 5, 8, 1, 4, "exp7", 2, "node1:29500"),
        (TORCHRUN | SRUN, "torchrun", 5, 8, 1, 4, "exp7", 2, "node1:29500"),
        (DEEPSPEED, "deepspeed", 9, 16, 1, 8, "", 0, "10.0.0.1:29500"),
        (SRUN, "slurm", 3, 6, 1, 2, "88.0", 0, ""),
        (SRUN | {"RANK": "3", "WORLD_SIZE": "6"}, "slurm", 3, 6, 1, 2, "88.0", 0, ""),
        (SRUN | {"RANK": "25", "WORLD_SIZE": "48", "LOCAL_RANK": "1"}, "environment", 25, 48, 1, None, "", 0, ""),
        (OPENMPI, "openmpi", 2, 4, 0, 2, "prterun-h-12@1", 0, ""),
        (OPENMPI | SRUN, "openmpi", 2, 4, 0, 2, "prterun-h-12@1", 0, ""),
        (HYDRA, "mpich", 1, 4, 1, 2, "", 0, ""),
        (MVAPICH, "mpich", 3, 4, 1, 2, "", 0, ""),
        (PLAIN, "environment", 1, 2, None, None, "", 0, "localhost:1234"),
        (POD, "single", 0, 1, None, None, "", 0, ""),
        (POD | TORCHRUN, "torchrun", 5, 8, 1, 4, "exp7", 2, "node1:29500"),
        (JAX, "jax", 1, 3, None, None, "", 0, "10.0.0.1:1234"),
        (JAX | SRUN, "jax", 1, 3, None, None, "", 0, "10.0.0.1:1234"),
        (JAX | TORCHRUN, "torchrun", 5, 8, 1, 4, "exp7", 2, "node1:29500"),
        ({"JAX_PROCESS_INDEX": "0", "JAX_PROCESS_COUNT": "2"}, "jax", 0, 2, None, None, "", 0, ""),
        (MAXTEXT, "jax", 2, 4, None, None, "", 0, "10.0.0.1:1234"),
        ({"NODE_RANK": "2", "NNODES": "4"}, "single", 0, 1, None, None, "", 0, ""),
        ({"PROCESS_ID": "1", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "pod-0", "COORDINATOR_PORT": "99"}, "jax", 1, 2, None, None, "", 0, "pod-0:99"),
        ({"PROCESS_ID": "1", "NUM_PROCESSES": "2"}, "single", 0, 1, None, None, "", 0, ""),
        ({}, "single", 0, 1, None, None, "", 0, ""),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, "single", 0, 1, None, None, "", 0, ""),
    ],
)  # fmt: skip
def test_what_each_launcher_says(
    environ: dict[str, str],
    launcher: str,
    rank: int,
    world: int,
    local: int | None,
    local_world: int | None,
    run_id: str,
    attempt: int,
    master: str,
) -> None:
    claim = strongest(environ)
    assert claim.problem == ""
    assert (claim.launcher, claim.rank, claim.world_size) == (launcher, rank, world)
    assert (claim.local_rank, claim.local_world_size) == (local, local_world)
    assert (claim.run_id, claim.attempt, claim.master) == (run_id, attempt, master)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "abc"}, "RANK is 'abc', which is not a number"),
        ({"RANK": "1" * 100_000}, "which is not a number"),
        ({"RANK": "\x1b[31m1\x00"}, "RANK is '1', which is not a number"),
        ({"RANK": "٣"}, "which is not a number"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is -1, which cannot be"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0, which cannot be"),
        ({"WORLD_SIZE": "1000000000"}, "WORLD_SIZE is 1000000000, which cannot be"),
        ({"WORLD_SIZE": "9" * 5000}, "which is not a number"),
        ({"RANK": "8"}, "rank 8 of a world of 8 cannot be"),
        ({"LOCAL_RANK": "4"}, "local rank 4 of 4 cannot be"),
        ({"LOCAL_WORLD_SIZE": "9"}, "9 local ranks of a world of 8 cannot be"),
        ({"TORCHELASTIC_RESTART_COUNT": "<script>"}, "TORCHELASTIC_RESTART_COUNT is '<script>'"),
    ],
)
def test_lies_are_told_in_one_short_clean_sentence(changed: dict[str, str], words: str) -> None:
    problem = strongest(TORCHRUN | changed).problem
    assert words in problem
    assert len(problem) < 200
    assert problem.isprintable()


@pytest.mark.parametrize("source", [PLAIN, DEEPSPEED])
def test_every_launcher_of_plain_variables_sees_the_lie(source: dict[str, str]) -> None:
    assert strongest(source | {"RANK": "abc"}).problem


def test_texts_from_the_job_are_cleaned_and_cut() -> None:
    claim = strongest(TORCHRUN | {"TORCHELASTIC_RUN_ID": "a\x1b[31m\n" + "x" * 10_000})
    assert claim.run_id.startswith("a xxx")
    assert len(claim.run_id) <= 200
    assert len(strongest(PLAIN | {"MASTER_ADDR": "h" * 10_000}).master) < 200


@pytest.mark.parametrize(
    ("master", "loopback"),
    [
        ("localhost:1", True), ("127.0.0.1:29500", True), ("127.0.1.1:1", True), ("::1:29500", True),
        ("node1:29500", False), ("10.0.0.1:1", False), ("", False), ("localhost.evil:1", False), ("localhost.localdomain:1", True),
    ],
)  # fmt: skip
def test_masters_that_only_this_node_can_reach(master: str, loopback: bool) -> None:
    assert RankClaim(launcher="x", priority=1, master=master).loopback is loopback


@pytest.mark.parametrize(
    ("tasks", "node", "expected"),
    [
        ("2(x3)", "2", 2), ("2(x3)", "3", None), ("4,2(x2),1", "0", 4), ("4,2(x2),1", "2", 2),
        ("4,2(x2),1", "3", 1), ("", "0", None), ("x", "0", None), ("4", "", None), ("4", "-1", None),
    ],
)  # fmt: skip
def test_slurms_short_form(tasks: str, node: str, expected: int | None) -> None:
    assert tasks_here(tasks, node) == expected


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("pt_elastic", ()),
        ("torchrun", ("/opt/env/bin/python3", "/opt/env/bin/torchrun", "--nproc-per-node", "2", "t.py")),
        ("python", ("python", "-m", "torch.distributed.run", "t.py")),
        ("python", ("python3", "-u", "-X", "dev", "-m", "torch.distributed.launch", "t.py")),
        ("python", ("python3", "/usr/lib/python3/site-packages/torch/distributed/run.py", "t.py")),
        ("accelerate", ("/usr/bin/python3", "/usr/local/bin/accelerate", "launch", "t.py")),
        ("python", ("python", "-m", "accelerate.commands.launch", "t.py")),
        ("deepspeed", ("/usr/bin/python3", "/usr/local/bin/deepspeed", "t.py")),
        ("python", ("/usr/bin/python3", "-u", "-m", "deepspeed.launcher.launch", "--world_info=x", "t.py")),
        ("mpirun", ()), ("orted", ()), ("hydra_pmi_proxy", ()), ("slurmstepd", ()),
    ],
)  # fmt: skip
def test_launchers_are_recognised(name: str, argv: tuple[str, ...]) -> None:
    assert any(launcher.is_launcher(name, argv) for launcher in LAUNCHERS)


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("python", ("python", "-u", "train.py", "--launcher", "torchrun")),
        ("python", ("python", "-c", "import torch.distributed.run")),
        ("python", ("python", "my_torchrun.py")),
        ("python", ("python", "run.py")),
        ("bash", ()),
        ("python", ()),
    ],
)
def test_training_scripts_are_no_launchers(name: str, argv: tuple[str, ...]) -> None:
    assert not any(launcher.is_launcher(name, argv) for launcher in LAUNCHERS)


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (("python", "-u", "/a/b/train.py", "-m", "x"), "train.py"),
        (("python", "-um", "pkg.train"), "pkg.train"),
        (("python", "-W", "error", "-X", "dev", "t.py"), "t.py"),
        (("python", "-c", "code"), "-c"),
        (("python",), ""),
        ((), ""),
    ],
)
def test_the_script_of_a_command_line(argv: tuple[str, ...], script: str) -> None:
    assert script_of(argv) == script
    assert not runs(argv, scripts=("torchrun",), modules=())


def test_every_file_in_the_room_is_a_plugin_with_help() -> None:
    found = names("launchers")
    assert found == [
        "accelerate", "deepspeed", "environment", "jax", "mpich", "openmpi", "single", "slurm", "torchrun",
    ]  # fmt: skip
    assert all(summary("launchers", name) for name in found)


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        (SRUN, ""),
        (SRUN | {"SLURM_JOB_NODELIST": "n[1-3]"}, "n[1-3]"),
        (SRUN | {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_NODELIST": "n[1-2]"}, "n[1-2]"),
        (TORCHRUN | {"SLURM_JOB_NODELIST": "n[1-3]"}, "n[1-3]"),
        (
            TORCHRUN
            | {
                "SLURM_JOB_NODELIST": "n[1-3]",
                "SLURM_STEP_NODELIST": "n2",
                "SLURM_STEP_NUM_NODES": "1",
            },
            "n[1-3]",
        ),
        (
            TORCHRUN | {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"},
            "",
        ),  # eight ranks, four on each node
        (
            TORCHRUN
            | {
                "SLURM_JOB_NODELIST": "n[1-3]",
                "SLURM_STEP_NODELIST": "n[1-2]",
                "SLURM_STEP_NUM_NODES": "2",
            },
            "n[1-2]",
        ),
        (TORCHRUN | {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "many"}, "n[1-2]"),
        (SRUN | {"SLURM_JOB_NODELIST": "n," * 9000}, ""),
        (SRUN | {"SLURM_JOB_NODELIST": "n1\x1b[2J"}, "n1"),
    ],
)
def test_the_nodes_of_a_scheduler_are_told(environ: dict[str, str], nodes: str) -> None:
    assert strongest(environ).node_list == nodes


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
PYTORCHJOB = POD | {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "llama-master-0", "MASTER_PORT": "23456"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        (PYTORCHJOB, ["llama-master-0", "llama-worker-0", "llama-worker-1"]),
        (PYTORCHJOB | {"WORLD_SIZE": "2"}, ["llama-master-0", "llama-worker-0"]),
        (
            TORCHRUN
            | POD
            | {"PET_RDZV_ENDPOINT": "llama-worker-0:29400", "MASTER_ADDR": "10.1.2.3"},
            ["llama-worker-0", "llama-worker-1"],
        ),
        (
            TORCHRUN | POD | {"PET_MASTER_ADDR": "llama-node-0-0.llama"},
            ["llama-node-0-0.llama", "llama-node-0-1.llama"],
        ),
        (TORCHRUN | POD | {"SLURM_JOB_NODELIST": "n[1-2]"}, ["n1", "n2"]),
        ({key: value for key, value in PYTORCHJOB.items() if key not in POD}, []),
        (PYTORCHJOB | {"MASTER_ADDR": "llama"}, []),
        (PYTORCHJOB | {"MASTER_ADDR": "llama[0-9]-0"}, []),
        (PYTORCHJOB | {"WORLD_SIZE": "1000000"}, []),
    ],
)
def test_the_pods_of_a_job_are_known_by_their_names(
    environ: dict[str, str], nodes: list[str]
) -> None:
    """PyTorchJob, its elastic form, and what JobSet and TrainJob make; eight ranks of torchrun, four in each pod."""
    assert list(listed(strongest(environ).node_list)) == nodes


@pytest.mark.parametrize(
    ("words", "rank", "master"),
    [
        (("--process_id=2", "--num_processes=4", "--coordinator_address=h0:1234"), 2, "h0:1234"),
        (("--coordinator-address", "h0:1234", "--num-processes", "4", "--process-id", "3"), 3, "h0:1234"),
        (("--trainer.distributed.process_id", "1", "--trainer.distributed.num_processes", "4"), 1, ""),
    ],
)  # fmt: skip
def test_jax_told_by_the_command_line(words: tuple[str, ...], rank: int, master: str) -> None:
    claim = strongest({}, ("python", "train.py", *words))

    assert (claim.launcher, claim.rank, claim.world_size, claim.master) == ("jax", rank, 4, master)
    assert claim.needs_torch  # or JAX


def test_a_program_with_processes_of_its_own_is_no_jax() -> None:
    for words in (("--num_processes", "32"), ("--process_id", "x7", "--num_processes", "32")):
        assert strongest({}, ("python", "tokenize.py", *words)).launcher == "single"
