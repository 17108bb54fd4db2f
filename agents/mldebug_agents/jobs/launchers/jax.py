"""JAX on several processes: what `jax.distributed.initialize` takes from the environment or the command line.

JAX itself reads the variables of Slurm, Open MPI and Kubernetes; who sets the numbers by hand uses
one of the names below, or passes them as arguments.
"""

from collections.abc import Mapping
from itertools import zip_longest

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug_agents.jobs.launcher import Launcher, RankClaim, claim, runs

PRIORITY = (
    55  # above Slurm and plain RANK, which such a job may have as well; below launchers of PyTorch
)
NAMES = (  # process, number of processes, coordinator, its port where it stands apart
    (("JAX_PROCESS_ID", "JAX_PROCESS_INDEX"), ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"), "", ""),
    (("NODE_RANK",), ("NNODES",), "JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT"),  # MaxText on GPUs
    (("PROCESS_ID",), ("NUM_PROCESSES",), "COORDINATOR_ADDRESS", "COORDINATOR_PORT"),
    (("process_id", "process_index"), ("num_processes", "process_count"), "", ""),  # arguments
)
COORDINATORS = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_IP", "COORDINATOR_ADDRESS", "coordinator_address", "coordinator")  # fmt: skip
MAX_ARGUMENTS = 256


class JaxLauncher:
    """Recognises the processes of `jax.distributed` as ranks. Each may use several devices."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process that got its number in one of the ways that JAX programs use; None for any other."""
        values = {**_arguments(argv), **environ}
        for rank, world, coordinator, port in NAMES:
            if coordinator and not environ.get(coordinator):
                continue
            found = claim("jax", PRIORITY, values, rank=rank, world_size=world, needs_torch=True)
            if found is not None and found.problem and rank[0].islower():
                return None  # such an argument may be another program's
            if found is not None:
                master = next((values[name] for name in COORDINATORS if values.get(name)), "")
                master = f"{master}:{values[port]}" if values.get(port) else master
                return msgspec.structs.replace(found, master=clean(master, 110) or found.master)
        return None

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is a program that starts JAX processes one after another with their numbers."""
        return runs(argv, scripts=(), modules=("skrl.utils.distributed.jax",))


def _arguments(argv: tuple[str, ...]) -> dict[str, str]:
    """`--process_id=1`, `--process-id 1`, `--trainer.distributed.process_id 1` as {"process_id": "1"}; the first counts."""
    found: dict[str, str] = {}
    words = argv[1:MAX_ARGUMENTS]
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            key = name[2:].rpartition(".")[2].replace("-", "_")
            found.setdefault(key, value if equals else following)
    return found


def create(options: NoOptions) -> Launcher:
    """Build the launcher `jax`: JAX on several processes: what `jax.distributed.initialize` takes from the environment or the command line."""
    return JaxLauncher()
