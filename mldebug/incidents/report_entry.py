"""One report as an entry of a list, read from the beginning of its report.json."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.core.errors import AccessError, EvidenceError
from mldebug.core.files import check_unmounted, read_struct
from mldebug.core.model import shared_fields
from mldebug.core.text import seconds_of


class ReportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows of one report. `broken`: why the report cannot be read; "" where it can."""

    id: str
    verdict: str = ""
    confidence: str = ""
    job: str = ""
    job_id: str = ""
    sentence: str = ""
    time: str = ""
    state: str = ""
    kind: str = ""
    user: str = ""  # whose job it is
    ranks: int = 0  # of the whole job
    works: bool = False  # the job was found to go on
    broken: str = ""

    @property
    def at(self) -> float | None:
        """When the report was made (unix seconds).

        If it cannot be read, the time in its id; None where that is no time.
        """
        stamp = self.id[:16]  # 20261126T093903Z
        return seconds_of(self.time or stamp)


class ReportFilter(NamedTuple):
    """Which reports a list shows; a field that is None does not restrict it."""

    since: float | None = None  # unix seconds of the report
    job: str | None = None  # name, or id or the beginning of one
    verdict: str | None = None

    def matches(self, entry: ReportEntry) -> bool:
        """Whether the list shows this report.

        A report that cannot be read has no job and no verdict to match.
        """
        return (
            (self.since is None or entry.at is None or entry.at >= self.since)
            and (self.job is None or self.job == entry.job or entry.job_id.startswith(self.job))
            and (self.verdict is None or self.verdict == entry.verdict)
        )


EVERY_REPORT = ReportFilter()


class _JobHead(msgspec.Struct):
    name: str
    id: str = ""
    user: str = ""
    world_size: int = 0


class _DiagnosisHead(msgspec.Struct):
    verdict: str
    confidence: str
    summary: str
    works: bool = False


class _ReportHead(msgspec.Struct):
    """The part of report.json that a list needs; the rest is skipped, not built."""

    schema: str
    detected_at: str
    state: str
    job: _JobHead
    diagnosis: _DiagnosisHead
    kind: str = ""


def read_entry(folder: Path) -> ReportEntry:
    """Read the entry of one report folder.

    Never raises: a report that cannot be read gives an entry with the reason.
    """
    try:
        check_unmounted(folder / "report.json")
        head = read_struct(folder / "report.json", _ReportHead)
    except (EvidenceError, AccessError) as error:
        return ReportEntry(id=folder.name, broken=error.message)
    return ReportEntry(
        **shared_fields(head, ReportEntry),
        **shared_fields(head.diagnosis, ReportEntry),
        id=folder.name,
        job=head.job.name,
        job_id=head.job.id,
        sentence=head.diagnosis.summary,
        time=head.detected_at,
        user=head.job.user,
        ranks=head.job.world_size,
    )
