"""The collective calls of ranks: what their Flight Recorders hold, and the launches that NCCL itself counts."""

from mldebug.core.model.base import MeasuredData
from mldebug.core.model.process import Frame


class Collective(MeasuredData, frozen=True, kw_only=True):
    """One collective call of one rank, as recorded by its Flight Recorder."""

    op: str  # all_reduce
    sequence: int  # number of the call in its process group, from 1
    elements: int | None = None  # of all inputs; None: not told
    outputs: int | None = None  # elements of all outputs; None: not told
    dtypes: str = ""  # "Float"
    done: bool = False
    created_at: float = 0.0  # unix, when it was called
    timeout: float = 0.0  # seconds that it may take; 0: not told
    state: str = ""  # scheduled, started, completed, as the recorder spells it; "": not told
    frames: tuple[Frame, ...] = ()  # where it was called, innermost first; of a raw dump alone


class Transfer(MeasuredData, frozen=True, kw_only=True):
    """One unfinished send or receive of one rank, as recorded by its Flight Recorder."""

    op: str  # send, recv
    peer: int  # its number in the group
    group: str  # name
    description: str = ""
    members: str = ""  # of the group: global ranks, folded; "" where they are not known
    sequence: int = 0  # number of the rank's own transfer in the group, from 1
    created_at: float = 0.0
    frames: tuple[Frame, ...] = ()


class FlightGroup(MeasuredData, frozen=True, kw_only=True):
    """One process group as the Flight Recorder of one of its ranks shows it. The counts are sequence numbers; 0: none yet."""

    name: str
    backend: str = ""  # nccl, gloo: each counts for itself
    description: str = ""  # "default_pg", "dp"; what the job calls it
    members: str = ""  # global ranks, folded: "0-3"; "" where they are not known
    enqueued: int = 0
    completed: int = 0
    calls: tuple[Collective, ...] = ()  # oldest first: what is pending, and the newest


class GroupCount(MeasuredData, frozen=True, kw_only=True):
    """How far a rank is in a process group, by the `pg_status` of its dump; that is there even where finished calls are left out."""

    number: int  # by which this rank's process knows the group
    name: str = ""  # "": the dump holds no call of it, so it is not known
    enqueued: int = 0
    completed: int = 0


class PairCount(MeasuredData, frozen=True, kw_only=True):
    """How far a rank is with the sends and receives of a process group of two, whose members number them alike."""

    group: str
    members: str  # global ranks, folded
    done: int  # number of the last that is done


class TimedCall(MeasuredData, frozen=True, kw_only=True):
    """How long one collective took on one rank's GPU, from when this rank came to it. `created_at`: unix, by this rank's clock."""

    sequence: int
    seconds: float
    created_at: float


class TimedCalls(MeasuredData, frozen=True, kw_only=True):
    """The newest calls of one process group that were timed on one rank."""

    group: str  # name
    backend: str = ""
    members: str = ""  # global ranks, folded
    calls: tuple[TimedCall, ...] = ()


class FlightRecord(MeasuredData, frozen=True, kw_only=True):
    """The content of one rank's Flight Recorder at one moment: its process groups with their calls."""

    version: str = ""
    groups: tuple[FlightGroup, ...] = ()
    sends: tuple[str, ...] = ()  # point-to-point calls that are not done: "recv 3<-2"
    transfers: tuple[Transfer, ...] = ()  # the same, taken apart
    pairs: tuple[PairCount, ...] = ()
    silent: tuple[str, ...] = ()  # backends that have made calls of which no recorder tells
    counts: tuple[GroupCount, ...] = ()  # of a dump that holds no finished call
    unplaced: int = (
        0  # calls without a group, a number or a state: what this rank has called is not known
    )
    entries: int = 0  # calls of all kinds that were read of it; 0: none, or not told
    timed: tuple[TimedCalls, ...] = ()  # where the job has its timing on
    way: str = (
        ""  # how it was had, a `mldebug.capture.flight_recorder.access.AccessKind`; "": by the hook
    )


class NcclRank(MeasuredData, frozen=True, kw_only=True):
    """One rank of a communicator, as NCCL RAS reports it. `rank` is its number in this communicator, not in the job."""

    rank: int
    host: str = ""  # an address; "": not told
    pid: int | None = None  # in its own pid namespace
    gpu: int | None = None  # its CUDA device
    status: str = ""  # running, initializing, finalized, aborted, error 3; "": not told
    counts: dict[str, int] = {}  # function -> how many the host has launched; those of 0 left out


class NcclAbsent(MeasuredData, frozen=True, kw_only=True):
    """A process of which NCCL RAS has no data. `rank` is its number in its communicator; None where the communicator is not
    known.
    """

    rank: int | None = None
    host: str = ""
    pid: int | None = None
    gpu: int | None = None
    unresponsive: bool = False  # it did not answer; else it answers, and has left the communicator
    dead: bool = False  # RAS has given it up


class NcclLevel(MeasuredData, frozen=True, kw_only=True):
    """How many `ranks` of a communicator have launched `count` calls of `function`."""

    function: str  # AllReduce
    count: int
    ranks: int


class NcclCommunicator(MeasuredData, frozen=True, kw_only=True):
    """A communicator as NCCL RAS reports it. `ranks` may be incomplete; `levels`, `launched` and `furthest` cover all ranks that
    answered.
    """

    key: str  # all the hashes that it is known by
    size: int = 0  # 0: not told
    answered: int = 0
    launched: int | None = None  # sum over ranks and functions; None: not told
    furthest: int = 0  # the most that one rank has launched
    ranks: tuple[NcclRank, ...] = ()
    absent: tuple[NcclAbsent, ...] = ()
    absent_count: int = 0
    levels: tuple[NcclLevel, ...] = ()  # of the functions whose counts differ


class NcclRas(MeasuredData, frozen=True, kw_only=True):
    """The answer of NCCL RAS in one process, about all processes of the job. Counts are launches by the host, which do not show
    what completed.
    """

    version: str  # of NCCL: 2.28.9
    form: str = "json"  # text: only what differs is told, so equal counts are not known
    communicators: tuple[NcclCommunicator, ...] = ()
    absent: tuple[NcclAbsent, ...] = ()  # processes, where no communicator is told
    seconds: float = 0.0  # that it took to collect
    timeouts: int = 0  # processes that were too slow
    own: tuple[str, ...] = ()  # addresses of the network that was asked from
    left_out: int = 0  # communicators
