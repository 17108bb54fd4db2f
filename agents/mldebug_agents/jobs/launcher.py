"""What a launcher plugin is (`Launcher`), and what the files in `launchers/` share: reading a
process's claim to be a rank (`RankClaim`) out of its environment.

The job writes its environment, so numbers that cannot be true become a problem in words, and no
claim is believed before `ranks/grouping.py` has compared those of all processes.
"""

import re
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from mldebug.cluster.run_identity import is_loopback, is_specific
from mldebug.core.errors import UsageError
from mldebug.core.model import NodeWait
from mldebug.core.ranksets import check_nodes
from mldebug.core.redact import clean

MAX_PODS = 2048
FIRST = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR")  # torchrun rewrites the last
_HOST = r"([a-z0-9][a-z0-9-]{0,200})"
_DOMAIN = r"((?:\.[a-z0-9][a-z0-9.-]{0,200})?)"
_MASTER = re.compile(rf"{_HOST}-master-0{_DOMAIN}")
_FIRST = re.compile(rf"{_HOST}-0{_DOMAIN}")
MAX_WORLD = 1_000_000
MAX_LOCAL = 4096  # ranks on one node
MAX_NODE_LIST = 8192  # characters
NODE_LISTS = {  # the narrowest first, with the variable that says how many
    "SLURM_STEP_NODELIST": "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NODELIST": "SLURM_JOB_NUM_NODES",
    "SLURM_NODELIST": "SLURM_NNODES",
}
_MODULE_FLAG = re.compile(r"-[a-zA-Z]*m")
_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def pod_list(environ: Mapping[str, str], count: int) -> str:
    """The names of `count` pods of a Kubernetes job, folded like a scheduler's node list, derived
    from the first pod's name. "" outside of Kubernetes, or where that name ends in no number.
    """
    if "KUBERNETES_SERVICE_HOST" not in environ or not 1 < count <= MAX_PODS:
        return ""
    hosts = (environ.get(name, "").partition(":")[0] for name in FIRST)
    return next(filter(None, (_from(host, count) for host in hosts)), "")


def _from(host: str, count: int) -> str:
    if found := _MASTER.fullmatch(host):
        job, domain = found[1], found[2]
        return f"{job}-master-0{domain},{job}-worker-{_numbers(count - 1)}{domain}"
    found = _FIRST.fullmatch(host)
    return f"{found[1]}-{_numbers(count)}{found[2]}" if found else ""


def _numbers(count: int) -> str:
    return "0" if count == 1 else f"[0-{count - 1}]"


class RankClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What one launcher's variables say that a process is: rank, world size and so on.

    `problem`: why this cannot be true, as a sentence; then the other fields must be ignored.
    """

    launcher: str  # file name of the plugin
    priority: int  # the highest of several claims counts
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None
    run_id: str = ""
    attempt: int = 0
    master: str = ""  # "addr:port"
    node_list: str = ""  # the scheduler's list of the run's nodes, folded as it says it
    supervised: bool = (
        False  # one launcher per node gives out neighbouring ranks and waits for each
    )
    needs_torch: bool = (
        False  # a claim that programs make which are no training: believe it with PyTorch only
    )
    problem: str = ""
    ignored: str = ""  # a sentence: what of it is not used, since it cannot be true

    @property
    def specific(self) -> bool:
        """Whether the run id names one run, and is not a default such as "none"."""
        return is_specific(self.run_id)

    @property
    def loopback(self) -> bool:
        """Whether the master's address can be reached from this node only (localhost)."""
        return is_loopback(self.master)


class Launcher(Protocol):
    """Recognises the ranks of one launcher (torchrun, srun …). Each file in `launchers/` makes one."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """What a process with this environment claims to be; None where this launcher has not started it."""

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether a process with that name and command line is this launcher itself. `argv` may be empty."""


class PendingLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line of a launcher says before it has started its ranks: for which nodes it
    waits, and what it will run.
    """

    launcher: str  # file name of the plugin
    script: str  # that its ranks will run; "" where that cannot be told
    wait: NodeWait
    node_list: str = ""  # the scheduler's list of the run's nodes, folded


@runtime_checkable
class NodeLauncher(Launcher, Protocol):
    """A launcher that runs on each node of a job, and starts its ranks once enough nodes have come
    (torchrun, accelerate).
    """

    def pending(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> PendingLaunch | None:
        """For which nodes a launcher with this command line waits; None for a job of one node.

        `argv` may be long: it is not cut.
        """


class ImpossibleClaimError(ValueError):
    """A variable has a value that cannot be true. The message is a sentence for the user."""


class ClaimVariables:
    """Reads values from a process's environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, *names: str) -> str:
        """The value of the first of these variables that is not empty, without control characters; "" where none is."""
        return next((clean(self._environ[name]) for name in names if self._environ.get(name)), "")

    def number(self, *names: str, most: int = MAX_WORLD, least: int = 0) -> int | None:
        """The first of these variables that is not empty, as a number; None where none is.

        Raises ImpossibleClaimError where it is no number, or not between `least` and `most`.
        """
        name = next((name for name in names if self._environ.get(name, "").strip()), "")
        if not name:
            return None
        text = self._environ[name].strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ImpossibleClaimError(f"{name} is {clean(text, 40)!r}, which is not a number")
        if not least <= int(text) <= most:
            raise ImpossibleClaimError(
                f"{name} is {int(text)}, which cannot be (expected {least} to {most})"
            )
        return int(text)

    def master(self) -> str:
        """MASTER_ADDR and MASTER_PORT as `addr:port`; "" without an address."""
        address, port = self.text("MASTER_ADDR"), self.text("MASTER_PORT")
        return f"{clean(address, 100)}:{clean(port, 10)}" if address else ""

    def node_list(self, ranks: int, on_each: int) -> tuple[str, str]:
        """The scheduler's node list as it stands (folded), and a sentence for the user where a list cannot be used.

        The list is "" where it names too few nodes for `ranks` at `on_each` a node (0: unknown), as
        in a scheduler step of one node; then names of Kubernetes pods are tried.
        """
        name = next((name for name in NODE_LISTS if self._holds(name, ranks, on_each)), "")
        listed = clean(self._environ.get(name, ""), MAX_NODE_LIST + 1)
        listed = listed if len(listed) <= MAX_NODE_LIST else ""
        try:
            if listed:
                check_nodes(listed)
        except UsageError as error:
            return "", f"{name} is not used: {error.message}"
        return listed or pod_list(self._environ, ranks // (on_each or 1)), ""

    def _holds(self, name: str, ranks: int, on_each: int) -> bool:
        nodes = self._environ.get(NODE_LISTS[name], "")
        is_short = bool(on_each) and nodes.isdecimal() and int(nodes[:9]) * on_each < ranks
        return bool(self._environ.get(name)) and not is_short


def claim(
    launcher: str,
    priority: int,
    environ: Mapping[str, str],
    *,
    rank: tuple[str, ...],
    world_size: tuple[str, ...],
    local_rank: tuple[str, ...] = (),
    local_world_size: tuple[str, ...] = (),
    run_id: str = "",
    attempt: str = "",
    supervised: bool = False,
    needs_torch: bool = False,
) -> RankClaim | None:
    """Build a claim to be a rank from environment variables: `rank`, `world_size` and so on name the variables to try, of
    each the first that is set. `launcher` and `priority`: of the launcher that makes the claim; `supervised` and
    `needs_torch`: as in `RankClaim`.

    None where rank or world size is not set. A value that cannot be true gives a claim with a `problem`.
    """
    values = ClaimVariables(environ)
    try:
        number = values.number(*rank)
        world = values.number(*world_size, least=1)
        if number is None or world is None:
            return None
        local, local_world = (
            values.number(*local_rank),
            values.number(*local_world_size, least=1, most=MAX_LOCAL),
        )
        _compare(number, world, local, local_world)
        tries = values.number(attempt) if attempt else None
    except ImpossibleClaimError as lie:
        return RankClaim(launcher=launcher, priority=priority, problem=str(lie))
    nodes, ignored = values.node_list(world, local_world or 0)
    return RankClaim(
        launcher=launcher,
        priority=priority,
        rank=number,
        world_size=world,
        local_rank=local,
        local_world_size=local_world,
        run_id=clean(run_id),
        attempt=tries or 0,
        master=values.master(),
        node_list=nodes,
        ignored=ignored,
        supervised=supervised,
        needs_torch=needs_torch,
    )


def torch_claim(
    launcher: str, priority: int, environ: Mapping[str, str], *, elastic: bool = False
) -> RankClaim | None:
    """Build a claim to be a rank from RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; None without the first two.

    `launcher` and `priority`: of the launcher that makes the claim. `elastic`: also from torchrun's run id and restart
    count.
    """
    return claim(
        launcher,
        priority,
        environ,
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        run_id=environ.get("TORCHELASTIC_RUN_ID", "") if elastic else "",
        attempt="TORCHELASTIC_RESTART_COUNT" if elastic else "",
        supervised=elastic,
    )


def _compare(rank: int, world: int, local: int | None, local_world: int | None) -> None:
    if rank >= world:
        raise ImpossibleClaimError(f"rank {rank} of a world of {world} cannot be")
    if local_world is not None and local_world > world:
        raise ImpossibleClaimError(f"{local_world} local ranks of a world of {world} cannot be")
    if local is not None and local >= (local_world or world):
        raise ImpossibleClaimError(f"local rank {local} of {local_world or world} cannot be")


def overruled(environ: Mapping[str, str], rank: str, world_size: str) -> bool:
    """Whether RANK and WORLD_SIZE are set and differ from the scheduler's variables, which are named.

    So it is where the scheduler starts one task per node, which starts the ranks: its rank is then
    the node's number.
    """
    own, scheduled = (
        (environ.get("RANK"), environ.get("WORLD_SIZE")),
        (environ.get(rank), environ.get(world_size)),
    )
    return all(own) and own != scheduled


def script_of(argv: tuple[str, ...]) -> str:
    """The script (its file name), module or `-c` that an interpreter's command line runs; "" where it has none."""
    words = iter(argv[1:])
    for word in words:
        if word in _TAKES_VALUE:
            next(words, None)
        elif _MODULE_FLAG.fullmatch(word):
            return next(words, "")
        elif word == "-c" or not word.startswith("-"):
            return word.rpartition("/")[2]
    return ""


def runs(argv: tuple[str, ...], *, scripts: tuple[str, ...], modules: tuple[str, ...]) -> bool:
    """Whether a command line runs one of these scripts, or one of these modules by `python -m` or by the module's file."""
    script = script_of(argv)
    program = argv[0].rpartition("/")[2] if argv else ""
    if script in (*scripts, *modules) or program in scripts:
        return True
    path = next((word for word in argv[1:] if not word.startswith("-")), "")
    return any(path.endswith(f"/{module.replace('.', '/')}.py") for module in modules)
