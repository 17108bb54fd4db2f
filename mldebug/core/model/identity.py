"""Which ranks, jobs and launchers are on a node, and what could not be found out about them."""

from mldebug.core.model.base import MeasuredData


class RankIdentity(MeasuredData, frozen=True, kw_only=True):
    """Who one rank's process on this node is: rank, pid, user, launcher, run. Read once and then cached."""

    rank: int
    world_size: int
    pid: int
    start_ticks: int = 0  # /proc/PID/stat field 22: with pid it survives PID reuse
    started_at: float = 0.0
    node: str = ""
    local_rank: int | None = None
    local_world_size: int | None = None
    uid: int = 0
    owner: int | None = (
        None  # who made its user namespace, where it has one: then a user has thousands of uids
    )
    user: str = ""
    launcher: str = "environment"  # name of the launchers/ plugin that recognised it
    launcher_pid: int | None = None
    run_id: str = ""
    attempt: int = 0
    master: str = ""  # "addr:port"
    script: str = ""
    argv: tuple[str, ...] = ()  # redacted
    namespace_pid: int | None = None  # pid inside its own pid namespace, when that differs
    container: str = ""
    nccl_ras: str = ""  # NCCL_RAS_ADDR; "off": NCCL_RAS_ENABLE is 0; "": neither is set
    array: str = ""  # id of the scheduler's job array that it is a task of


class LostRank(MeasuredData, frozen=True, kw_only=True):
    """A rank that should be on this node and has no living process."""

    rank: int
    pid: int | None = None  # of the zombie, where one is left
    exit_status: int | None = None  # wait(2) status word, where the kernel still tells it
    reason: str = "exit unknown"
    leftovers: tuple[int, ...] = ()  # living children it left behind


class NodeWait(MeasuredData, frozen=True, kw_only=True):
    """What a launcher that has started no rank waits for: the other nodes of its run, by its command line and environment."""

    nodes: int = 0  # that the run needs at least; 0: not known
    here: int = 1  # launchers of the run on this node: each stands for one of its nodes
    rendezvous: str = "static"  # c10d, static, etcd-v2 …
    endpoint: str = ""  # "addr:port" where the nodes meet
    run_id: str = ""
    again: bool = False  # it has had ranks before, which have ended
    present: tuple[str, ...] = ()  # nodes with a launcher, as all agents count; empty: none counts


class Job(MeasuredData, frozen=True, kw_only=True):
    """One attempt (one start) of one run on this node or, after merging, on all nodes."""

    id: str  # short and stable: derived from run id, master and first start
    name: str
    launcher: str
    attempt: int = 0
    world_size: int = 1
    launcher_pid: int | None = None
    uid: int = 0
    user: str = ""
    started_at: float = 0.0
    nodes: tuple[str, ...] = ()
    node_list: str = ""  # all nodes of the run as its scheduler says, folded; "": none says so
    ranks: tuple[RankIdentity, ...] = ()  # sorted by rank
    lost: tuple[LostRank, ...] = ()
    waits: NodeWait | None = None  # its launcher has started no rank yet; None: it has ranks


class Remark(MeasuredData, frozen=True, kw_only=True):
    """Something odd in a job that is no stall, such as two processes with one rank, or impossible environment variables."""

    kind: str
    message: str
    pids: tuple[int, ...] = ()


class Gap(MeasuredData, frozen=True, kw_only=True):
    """Evidence that is missing: what, why, and how to get it the next time."""

    what: str
    reason: str
    rank: int | None = None
    pid: int | None = None
    way_out: str = ""
