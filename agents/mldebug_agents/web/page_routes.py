"""The web pages: at the socket everybody sees his own, by TCP whoever has shown the agent's token sees all.

A page only reads the last snapshot and reports on disk, and is only looked at: nothing but the gate takes a POST.
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
from mldebug.web.incident_list import rows_of
from mldebug.web.page import PageRequest
from mldebug_agents.web.peer_credentials import may_see_all, view
from mldebug_agents.web.report_cache import ReportCache
from mldebug_agents.web.responses import HEADERS, Viewer, html, look, peer_at, said, same
from mldebug_agents.web.token_auth import TokenAuth

MAX_ID = 512
FEW = 5  # reports of a run that is over
INCIDENTS = "/incidents"

Who = Callable[[Request], Viewer | Response]
Show = Callable[[Viewer, Request], Response]


class PageRoutes:
    """Makes routes of the pages; `told` gives the last snapshot, `age` the seconds since it came."""

    def __init__(
        self,
        state_dir: Path,
        token_file: Path | None,
        group: int | None,
        told: Callable[[], Snapshot | None],
        age: Callable[[], float],
    ) -> None:
        self._group = group
        self._told = told
        self._age = age
        self._shelf = ReportCache(state_dir)
        self._gate = TokenAuth(token_file)

    def at_socket(self) -> list[Route]:
        """For people on this node; who comes from elsewhere was refused before."""
        return self._routes(self._peer)

    def by_tcp(self) -> list[Route]:
        """For whoever shows the token."""
        return [*self._routes(self._gate.viewer), *self._gate.routes()]

    def _routes(self, who: Who) -> list[Route]:
        home: Show = lambda _, __: RedirectResponse("/runs", headers=HEADERS)
        return [
            Route("/look.css", lambda _: look(frame.style(), "text/css")),
            Route("/look.js", lambda _: look(frame.script(), "text/javascript")),
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
            told = self._told()
            if told is None:
                return said(503, "The agent has not looked yet.", "Load this again in a moment.")
            wanted = request.query_params.get("id", "")[:MAX_ID]
            seen = told if viewer.uid is None else view(told, peer_at(request), self._group)
            entries, unread = self._entries(name, viewer)
            stale = "" if told.replay else stale_words(self._age())
            tag = _tag(name, wanted, viewer, seen.started_at, seen.at, entries, unread, stale)
            if request.headers.get("if-none-match") == tag:
                return same(tag)
            asked = PageRequest(told=seen, id=wanted, entries=entries, unread=unread)
            made = frame.render(name, asked, leave=viewer.leave, stale=stale)
            return html(made, tag=tag) if made is not None else _over(asked)

        return show

    def _entries(self, name: str, viewer: Viewer) -> tuple[tuple[ReportEntry, ...], str]:
        """The reports that he may see, for a page that wants them, or why there are none."""
        if not frame.pages()[name].reports:
            return (), ""
        try:
            return self._shelf.entries(viewer.uid), ""
        except MldebugError as error:
            return (), error.message

    def _report(self, viewer: Viewer, request: Request) -> Response:
        """Made anew from what was checked on reading: whoever owns its folder may have put anything into report.html."""
        wanted = request.query_params.get("id", "")[:MAX_ID]
        try:
            tag = _tag("report", wanted, viewer, self._shelf.version(wanted, viewer.uid))
            if request.headers.get("if-none-match") == tag:
                return same(tag)
            page = self._shelf.page(wanted, viewer.uid, INCIDENTS)
        except MldebugError as error:
            status = 503 if isinstance(error, AccessError) else 404
            sentence = f"{error.message[:1].upper()}{error.message[1:]}."
            return said(status, sentence, error.way_out, INCIDENTS)
        return html(page.html, f"{page.policy}; frame-ancestors 'none'", tag)


def _over(asked: PageRequest) -> Response:
    """There is no such run; of one that is over the reports are left."""
    mine = [one for one in asked.entries if asked.id and one.job_id == asked.id]
    sentence = "This run is over." if mine else "There is no such thing here, or it is over."
    return said(404, sentence, link="/runs", reports=rows_of(mine[:FEW], asked.told))


def _guarded(who: Who, show: Show) -> Callable[[Request], Response]:
    """First who it is; he may have to be sent to the gate."""

    def get(request: Request) -> Response:
        viewer = who(request)
        return viewer if isinstance(viewer, Response) else show(viewer, request)

    return get


def _tag(*shown: object) -> str:
    """The same as long as nothing changes: a snapshot is known by its moment."""
    made = hashlib.sha256(repr((frame.version(), *shown)).encode(errors="replace"))
    return f'"{made.hexdigest()[:24]}"'
