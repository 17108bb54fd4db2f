"""The routes of the web pages. Over the Unix socket users see only their own runs; over TCP a user with the agent's token sees all.

A page reads the last snapshot and the reports on disk, and changes nothing: only login and logout take a POST.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mldebug.core.errors import AccessError, MldebugError
from mldebug.incidents.report_entry import ReportEntry
from mldebug.status.run_lines import stale_words
from mldebug.status.snapshot import Snapshot
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug_agents.web.access.sessions import Sessions
from mldebug_agents.web.access.token_auth import TokenAuth
from mldebug_agents.web.peer_credentials import may_see_all, view
from mldebug_agents.web.report_cache import ReportCache
from mldebug_agents.web.responses import (
    HEADERS,
    Viewer,
    asset,
    html,
    message_page,
    not_modified,
    peer_at,
)

MAX_ID = 512

Who = Callable[[Request], Viewer | Response]
Show = Callable[[Viewer, Request], Response]


class PageRoutes:
    """The HTTP routes of the pages. `snapshot` returns the last snapshot or None; `age` returns the seconds since it was
    published.
    """

    def __init__(
        self,
        state_dir: Path,
        token_file: Path | None,
        sessions: Sessions,
        group: int | None,
        snapshot: Callable[[], Snapshot | None],
        age: Callable[[], float],
    ) -> None:
        self._group = group
        self._snapshot = snapshot
        self._age = age
        self._reports = ReportCache(state_dir)
        self.token_auth = TokenAuth(token_file, sessions)

    def at_socket(self) -> list[Route]:
        """The routes of the Unix socket, where the kernel identifies the user."""
        return self._routes(self._peer)

    def by_tcp(self) -> list[Route]:
        """The routes of the TCP port: pages need the token or a session; also login and logout."""
        return [*self._routes(self.token_auth.viewer), *self.token_auth.routes()]

    def _routes(self, who: Who) -> list[Route]:
        home: Show = lambda _, __: RedirectResponse("/runs", headers=HEADERS)
        return [
            Route("/look.css", lambda _: asset(frame.style(), "text/css")),
            Route("/look.js", lambda _: asset(frame.script(), "text/javascript")),
            Route("/", _guarded(who, home)),
            Route("/report", _guarded(who, self._report)),
            *(Route(f"/{name}", _guarded(who, self._page(name))) for name in frame.pages()),
        ]

    def _peer(self, request: Request) -> Viewer:
        peer = peer_at(request)
        if may_see_all(peer, self._group):
            return Viewer(None)
        return Viewer(peer.uid if peer is not None else -1)

    def _page(self, name: str) -> Show:
        def show(viewer: Viewer, request: Request) -> Response:
            snapshot = self._snapshot()
            if snapshot is None:
                return message_page(
                    503, "The agent has not looked yet.", "Load this again in a moment."
                )
            wanted = request.query_params.get("id", "")[:MAX_ID]
            visible = (
                snapshot if viewer.uid is None else view(snapshot, peer_at(request), self._group)
            )
            entries, unread = self._entries(name, viewer)
            stale = "" if snapshot.replay else stale_words(self._age())
            tag = _tag(name, wanted, viewer, visible.started_at, visible.at, entries, unread, stale)
            if request.headers.get("if-none-match") == tag:
                return not_modified(tag)
            page_request = PageRequest(snapshot=visible, id=wanted, entries=entries, unread=unread)
            hidden = {run.id for run in snapshot.runs} - {run.id for run in visible.runs}
            made = (
                frame.render(name, page_request, leave=viewer.leave, stale=stale)
                if wanted not in hidden
                else None
            )
            if made is None:
                return message_page(404, "There is no such thing here.", link="/runs")
            return html(made, tag=tag)

        return show

    def _entries(self, name: str, viewer: Viewer) -> tuple[tuple[ReportEntry, ...], str]:
        """The reports that the user may see, for a page that wants them, or why there are none."""
        if not frame.pages()[name].reports:
            return (), ""
        try:
            return self._reports.entries(viewer.uid), ""
        except MldebugError as error:
            return (), error.message

    def _report(self, viewer: Viewer, request: Request) -> Response:
        """Made anew from the checked report.json, because the folder's owner may have put anything into report.html."""
        wanted = request.query_params.get("id", "")[:MAX_ID]
        try:
            tag = _tag("report", wanted, viewer, self._reports.version(wanted, viewer.uid))
            if request.headers.get("if-none-match") == tag:
                return not_modified(tag)
            page = self._reports.page(
                wanted,
                viewer.uid,
                lambda report: frame.report_site(report.job.id, report.job.name),
            )
        except MldebugError as error:
            status = 503 if isinstance(error, AccessError) else 404
            sentence = f"{error.message[:1].upper()}{error.message[1:]}."
            return message_page(status, sentence, error.way_out, frame.REPORTS)
        return html(page.html, f"{page.policy}; frame-ancestors 'none'", tag)


def _guarded(who: Who, show: Show) -> Callable[[Request], Response]:
    """Find out which user asks before showing anything; without one, the answer leads to the login page."""

    def get(request: Request) -> Response:
        viewer = who(request)
        return viewer if isinstance(viewer, Response) else show(viewer, request)

    return get


def _tag(*shown: object) -> str:
    """Return an ETag: the same as long as none of these values changes."""
    made = hashlib.sha256(repr((frame.version(), *shown)).encode(errors="replace"))
    return f'"{made.hexdigest()[:24]}"'
