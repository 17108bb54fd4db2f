"""The hub's web pages: nodes and jobs, incidents that are searched, GPU hours."""

import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mldebug.core.errors import MldebugError
from mldebug.fleet.answers.hours import HoursList
from mldebug.fleet.answers.incidents import IncidentList
from mldebug.fleet.answers.jobs import JobTimeline
from mldebug.fleet.answers.lemons import NodeScore
from mldebug.web import frame
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.people import query_of
from mldebug_agents.web.responses import Viewer, html

MONTHS = 90 * 86400.0  # seconds that the page of GPU hours shows
MOST_JOBS, MOST_NODES = 50, 200  # of the page: the newest, the worst


class FleetPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first page of the hub: the jobs of one user; for an operator (`operator`) those of all, and the nodes with evidence against them."""

    operator: bool
    nodes: tuple[NodeScore, ...] = ()
    stray_gpus: tuple[str, ...] = ()
    jobs: tuple[JobTimeline, ...] = ()


def fleet_page(answerer: Answerer, viewer: Viewer, request: Request) -> Response:
    """The page for this viewer: a user sees the own jobs alone."""
    jobs = answerer.jobs(viewer.uid).jobs[:MOST_JOBS]
    page = FleetPage(operator=viewer.uid is None, jobs=jobs)
    if viewer.uid is None:
        found = answerer.lemons(None)
        page = msgspec.structs.replace(page, nodes=found.nodes[:MOST_NODES], stray_gpus=found.stray_gpus)  # fmt: skip
    return html(frame.plain("fleet/nodes", "Fleet", p=page))


class IncidentPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of incidents: what was asked, what fits, or what was wrong with the question."""

    query: Mapping[str, str]
    found: IncidentList | None = None
    wrong: str = ""


def incident_page(answerer: Answerer, viewer: Viewer, request: Request) -> Response:
    """Incidents that fit the parameters of the request: a user sees those of the own jobs alone."""
    query = {name: request.query_params.get(name, "") for name in ("words", "verdict", "node", "user", "job", "since", "until")}  # fmt: skip
    try:
        found = answerer.incidents(viewer.uid, query_of(query))
        page = IncidentPage(query=query, found=found)
    except MldebugError as error:
        page = IncidentPage(query=query, wrong=f"{error.message}: {error.way_out}")
    return html(frame.plain("fleet/incidents", "Incidents", p=page))


def hours_page(answerer: Answerer, viewer: Viewer, request: Request) -> Response:
    """GPU hours of the last weeks, by user or by job."""
    by = "job" if request.query_params.get("by") == "job" else "user"
    found: HoursList = answerer.hours(viewer.uid, by, time.time() - MONTHS)
    return html(frame.plain("fleet/goodput", "GPU hours", p=found))


def hub_pages(answerer: Answerer) -> dict[str, Callable[[Viewer, Request], Response]]:
    """The pages of a hub, by path. 503 where the database fails."""
    pages = {"/": fleet_page, "/incidents": incident_page, "/goodput": hours_page}
    return {path: partial(_or_trouble, partial(page, answerer)) for path, page in pages.items()}


def _or_trouble(page: Callable[[Viewer, Request], Response], viewer: Viewer, request: Request) -> Response:  # fmt: skip
    try:
        return page(viewer, request)
    except OSError as error:
        return PlainTextResponse(f"{error}\n", 503)
