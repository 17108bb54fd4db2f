"""What a page is built from, and what every page is. Pure."""

from typing import Protocol

import msgspec

from mldebug.incidents.report_entry import ReportEntry
from mldebug.status.snapshot import Snapshot


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page, with the data that the viewer may see; `snapshot.at` is the page's time."""

    snapshot: Snapshot
    id: str = ""  # of the address: ?id=…
    entries: tuple[
        ReportEntry, ...
    ] = ()  # the reports, the newest first; only for a page that wants them
    unread: str = ""  # why reports are missing


class WebPage(Protocol):
    """A page; its name is its address."""

    title: str
    key: str  # what is pressed after g to come here; "": it stands in no menu
    reports: bool  # does it want the reports?

    def build(self, request: PageRequest) -> msgspec.Struct | None:
        """What its template lays out, as `p`; None: there is no such thing."""
