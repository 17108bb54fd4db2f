"""The input of a web page, and the interface of all web pages. Pure."""

from typing import Protocol

import msgspec

from mldebug.incidents.report_entry import ReportEntry
from mldebug.status.snapshot import Snapshot


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page, with the data that this user may see.

    `snapshot.at` is the time that the page shows.
    """

    snapshot: Snapshot
    id: str = ""  # of the address: ?id=…
    entries: tuple[
        ReportEntry, ...
    ] = ()  # the reports, the newest first; only for a page that wants them
    unread: str = ""  # why reports are missing


class WebPage(Protocol):
    """A web page as a file in `pages/` creates it; the file's name is the page's address."""

    title: str
    key: str  # what is pressed after g to come here; "": it stands in no menu
    reports: bool  # does it want the reports?

    def build(self, request: PageRequest) -> msgspec.Struct | None:
        """The data for the page's template, where it is called `p`; None where the page's subject does not exist."""
