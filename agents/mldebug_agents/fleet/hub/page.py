"""The hub's one web page: the nodes against which there is evidence, for operators, and jobs with their time lines."""

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mldebug.fleet.answers.jobs import JobTimeline
from mldebug.fleet.answers.lemons import NodeScore
from mldebug.web import frame
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.web.responses import Viewer, html

MOST_JOBS, MOST_NODES = 50, 200  # of the page: the newest, the worst


class FleetPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows. `operator`: nodes are shown, too."""

    operator: bool
    nodes: tuple[NodeScore, ...] = ()
    stray_gpus: tuple[str, ...] = ()
    jobs: tuple[JobTimeline, ...] = ()


def fleet_page(answerer: Answerer, viewer: Viewer, request: Request) -> Response:
    """The page for this viewer: a user sees the own jobs alone. 503 where the database fails."""
    try:
        jobs = answerer.jobs(viewer.uid).jobs[:MOST_JOBS]
        page = FleetPage(operator=viewer.uid is None, jobs=jobs)
        if viewer.uid is None:
            found = answerer.lemons(None)
            page = msgspec.structs.replace(
                page, nodes=found.nodes[:MOST_NODES], stray_gpus=found.stray_gpus
            )
    except OSError as error:
        return PlainTextResponse(f"{error}\n", 503)
    return html(frame.plain("fleet", "Fleet", p=page))
