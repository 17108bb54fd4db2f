"""Ids of reports, newest first."""

import os
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from mldebug.core.errors import AccessError
from mldebug.core.plugins import NoOptions
from mldebug.incidents.report_dirs import report_stores_of
from mldebug.incidents.report_entry import read_entry
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.cli.completion.request import LISTED, CompletionRequest, Value
from mldebug_agents.cli.completion.values import ValueSource

OPENED = 40  # for a sentence each; older ones are listed without


class ReportValues:
    """The reports that this user may read, in the user's own state dir and in that of the service."""

    def values(self, request: CompletionRequest) -> Iterator[Value]:
        """The word `latest` where there are reports, then the ids of the newest `LISTED`."""
        found = [one for archive in report_stores_of(request.config) for one in _readable(archive)]
        newest = sorted(found, key=attrgetter("name"), reverse=True)[:LISTED]
        if newest:
            yield Value("latest", "the newest report")
        for number, folder in enumerate(newest):
            wanted = request.described and number < OPENED
            yield Value(folder.name, read_entry(folder).sentence if wanted else "")


def _readable(archive: ReportStore) -> Iterator[Path]:
    try:
        names = archive.names()[:LISTED]
    except AccessError:
        return  # not this user's: TAB offers nothing
    for name in names:
        if os.access(archive.folder / name / "report.json", os.R_OK):
            yield archive.folder / name


def create(options: NoOptions) -> ValueSource:
    """Build the source of completion values `reports`: ids of reports, newest first."""
    return ReportValues()
