"""A page as HTML: the frame around it, the menu, and one style and one script for all pages.

A page loads nothing from elsewhere and has no style attributes, and no text of a job can become
markup.
"""

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from jinja2 import Environment

from mldebug.core.plugins import create, names
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, format_size
from mldebug.incidents.report.html import ReportSite, SiteLink, templates
from mldebug.web.page import PageRequest, WebPage

TEMPLATES = Path(__file__).with_name("pages") / "templates"
REPORT = Path(__file__).parents[1] / "incidents/report/templates"
ORDER = ("runs", "incidents", "storage", "gpus", "probes")  # of the menu; others follow
REPORTS = "/incidents"  # the page that lists them
MOST_OPEN = 99
ALARM = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' cy='8' r='7' fill='%23c62828'/%3E%3C/svg%3E"
"""The icon of a tab while an incident is open: a red dot."""
INCIDENTS = {"slowdown": "slow", "abnormal_end": "failed"}  # the others have stalled
EVERY = 3  # seconds between two questions of a page that is looked at

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every page but the reports."""


class MenuEntry(NamedTuple):
    """One entry of the menu of the web pages."""

    name: str
    title: str
    key: str


class PageFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The frame around every page: title, menu, address of style and script."""

    name: str
    title: str
    places: tuple[MenuEntry, ...]
    node: str = ""
    at: str = ""  # when the agent looked, RFC 3339; "": no page of its own
    since: str = ""
    replay: str = ""
    hidden_runs: int = 0
    stale: str = ""  # that the agent has not looked for long
    leave: bool = False  # can he log out?
    open: tuple[str, ...] = ()  # what has an open incident, for the title of the tab
    icon: str = "data:,"
    version: str = ""
    every: int = EVERY


@cache
def pages() -> dict[str, WebPage]:
    """All web pages, which are plugins, by name."""
    return {name: create("pages", name) for name in names("pages")}


@cache
def style() -> str:
    """The CSS of the report, followed by that of the pages."""
    return (REPORT / "report.css").read_text() + (TEMPLATES / "frame/pages.css").read_text()


@cache
def script() -> str:
    """The JavaScript of all pages."""
    return (TEMPLATES / "frame/pages.js").read_text()


@cache
def version() -> str:
    """A hash of style and script for their URLs, so that browsers may cache them for ever."""
    return hashlib.sha256((style() + script()).encode()).hexdigest()[:12]


def render(name: str, request: PageRequest, *, leave: bool = False, stale: str = "") -> str | None:
    """A page as HTML; None where its subject (such as a run) does not exist.

    `leave`: show the button to log out. `stale`: a sentence that the data are old; "" if not.
    """
    page = pages()[name]
    built = page.build(request)
    if built is None:
        return None
    snapshot = request.snapshot
    ailing = [run for run in snapshot.runs if run.incident]
    frame = PageFrame(
        name=name,
        title=page.title,
        places=_places(),
        node=clean(snapshot.node, 64),
        at=datetime.fromtimestamp(snapshot.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        since=duration_words(int(snapshot.at - snapshot.started_at)),
        replay=clean(snapshot.replay, 100),
        hidden_runs=snapshot.hidden_runs,
        stale=stale,
        leave=leave,
        open=tuple(
            f"{INCIDENTS.get(run.incident_kind, 'stalled')}: {clean(run.name, 40)}"
            for run in ailing[:MOST_OPEN]
        ),
        icon=ALARM if ailing else "data:,",
        version=version(),
    )
    return _environment().get_template(f"{name}.html.j2").render(p=built, f=frame)


def plain(name: str, title: str, **shown: object) -> str:
    """A page without data of the node, such as login and errors.

    `name`: its template, with the folder, as in `frame/login`; `shown`: values for it.
    """
    frame = PageFrame(name=name, title=title, places=(), version=version(), every=0)
    return _environment().get_template(f"{name}.html.j2").render(f=frame, **shown)


def report_site(job: str, name: str) -> ReportSite:
    """The navigation around a report, for a report that belongs to `job` (its id): the menu of all pages, and a link back to the page of that
    run, which exists longer than the job. `name`: the run's name, as the link shows it.
    """
    menu = tuple(SiteLink(place.title, f"/{place.name}") for place in _places())
    trail = [one for one in menu if one.url == REPORTS]
    if job:
        trail.append(SiteLink(clean(name, 60), f"/run?id={quote(job, safe='')}"))
    return ReportSite(menu, tuple(trail))


@cache
def _places() -> tuple[MenuEntry, ...]:
    shown = {name: page for name, page in pages().items() if page.key}
    order = [*(name for name in ORDER if name in shown), *(set(shown) - set(ORDER))]
    return tuple(MenuEntry(name, shown[name].title, shown[name].key) for name in order)


@cache
def _environment() -> Environment:
    return templates(
        TEMPLATES,
        {
            "size": format_size,
            "duration": lambda seconds: duration_words(int(seconds)),
            "clean": clean,
        },
    )
