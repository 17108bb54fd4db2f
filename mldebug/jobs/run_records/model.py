"""The record of one run: with what it was started, and on what."""

import re
from collections.abc import Iterable

import msgspec

NOT_SET = "not set"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node knows of a run: its arguments, environment, packages and code, and the node itself.

    They are those of the lowest rank on this node, without secrets. Times are unix seconds. What could not be read is empty
    and named in `gaps`.
    """

    run: str
    name: str = ""
    user: str = ""
    uid: int = -1
    script: str = ""
    launcher: str = ""
    world_size: int = 0
    rank: int = 0  # whose arguments and environment these are
    nodes: str = ""  # of the run, folded: "node[1-4]"
    started_at: float = 0.0
    last_at: float = 0.0  # when the agent saw it last
    is_over: bool = False
    outcome: str = ""  # how its ranks ended, in words
    arguments: tuple[str, ...] = ()  # the whole command line
    directory: str = ""  # the working directory
    environment: dict[str, str] = {}
    packages: dict[str, str] = {}  # name -> version
    code: dict[str, str] = {}  # "commit", "script": what names the version of the code
    machine: dict[str, str] = {}  # of the node: kernel, cores, GPUs, driver
    gaps: tuple[str, ...] = ()  # what could not be read, in words
    partial: tuple[str, ...] = ()  # which of arguments, environment, packages are not all there is


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The training figures of a run over time, as its history has them. `columns`: by name, one value for each of `times` (unix
    seconds) and `steps`; None: no value then.
    """

    times: tuple[float, ...] = ()
    steps: tuple[int | None, ...] = ()
    columns: dict[str, tuple[float | None, ...]] = {}


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of recorded runs."""

    run: str
    name: str
    user: str
    script: str
    world_size: int
    started_at: float
    last_at: float
    is_over: bool
    outcome: str


class RunRecordList(msgspec.Struct, frozen=True, kw_only=True):
    """All recorded runs that a user may see, the newest first."""

    runs: tuple[RunSummary, ...]


def without_numbers(name: str) -> str:
    """The name of a job without the numbers that srun, mpirun or a person puts there anew for each run: `train.py 4711.0`."""
    return re.sub(r"\d+", "#", name)


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a run as it is held in memory: which user may see it, and the record as JSON, which takes a tenth of the memory."""

    summary: RunSummary
    uid: int
    encoded: bytes

    @classmethod
    def of(cls, record: RunRecord) -> "StoredRecord":
        """A record in the form in which it is kept in memory."""
        summary = RunSummary(
            **{name: getattr(record, name) for name in RunSummary.__struct_fields__}
        )
        return cls(summary=summary, uid=record.uid, encoded=msgspec.json.encode(record))

    def record(self) -> RunRecord:
        """The whole record, decoded."""
        return msgspec.json.decode(self.encoded, type=RunRecord)


def record_list(records: Iterable[StoredRecord]) -> RunRecordList:
    """The list of recorded runs, the newest first."""
    newest = sorted((one.summary for one in records), key=lambda one: -one.started_at)
    return RunRecordList(runs=tuple(newest))


def record_of(records: Iterable[StoredRecord], run: str) -> RunRecord | None:
    """The record of the run with this id; None where there is none."""
    return next((one.record() for one in records if one.summary.run == run), None)
