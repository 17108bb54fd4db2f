"""All reports of this node, the newest first: what stopped, why, when, and whose it was."""

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.web.incident_list import IncidentRow, rows_of
from mldebug.web.page import PageRequest, WebPage


class PendingIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident that is open and has no report yet."""

    id: str
    run: str  # id
    name: str
    state: str


class IncidentsPageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page of all incidents shows."""

    open: int
    rows: tuple[IncidentRow, ...]
    pending: tuple[PendingIncident, ...]
    unread: str


class IncidentsPage:
    """The page "Incidents": the stored reports, as `mldebug reports list` prints them."""

    title = "Incidents"
    key = "i"
    reports = True

    def build(self, request: PageRequest) -> IncidentsPageData:
        """The page's data: open incidents without a report, then all reports on disk."""
        written = {entry.id for entry in request.entries}
        unwritten = [
            run for run in request.snapshot.runs if run.incident and run.incident not in written
        ]
        rows = rows_of(request.entries, request.snapshot)
        return IncidentsPageData(
            open=sum(bool(run.incident) for run in request.snapshot.runs),
            rows=rows,
            pending=tuple(
                PendingIncident(
                    id=run.incident,
                    run=run.id,
                    name=clean(run.name, 60),
                    state=clean(run.sentence, 400),
                )
                for run in unwritten
            ),
            unread=clean(request.unread, 300),
        )


def create(options: NoOptions) -> WebPage:
    """Build the web page `incidents`: all reports of this node, the newest first: what stopped, why, when, and whose it was."""
    return IncidentsPage()
