"""The report as one HTML file."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mldebug.core.text import moment
from mldebug.incidents.report import rank_map
from mldebug.incidents.report.html import embed, render_html
from shared.incidents import samples

VOID = {"meta", "link", "br", "input"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Collects elements and text, and insists that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open[-1:]:
            self.texts.setdefault(tag, []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module", params=[*samples.ALL, "huge", "scattered"])
def page(request: pytest.FixtureRequest) -> tuple[str, Page]:
    make = samples.ALL | {"huge": samples.huge, "scattered": samples.scattered}
    text = render_html(samples.report(make[request.param]()))
    return text, Page(text)


def test_elements_nest(page: tuple[str, Page]) -> None:
    assert page[1].all("main")


def test_nothing_is_loaded_from_elsewhere(page: tuple[str, Page]) -> None:
    for tag, attributes in page[1].elements:
        assert "src" not in attributes
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")]
        href = attributes.get("href") or "#"
        assert href == "data:," or href.startswith("#")
    assert "@import" not in page[0]
    assert "url(" not in page[0]


def test_links_lead_somewhere(page: tuple[str, Page]) -> None:
    ids = [attributes["id"] for _, attributes in page[1].elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] or "" for attributes in page[1].all("a")}
    groups = {href for href in targets if href.startswith("#group-")}
    assert {href[1:] for href in targets - groups} <= set(ids)


def test_only_our_style_and_script_may_run(page: tuple[str, Page]) -> None:
    policy = next(
        attributes["content"] or ""
        for attributes in page[1].all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    style, script = page[1].texts["style"], page[1].texts["script"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for text in ("".join(style), script[-1]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_there_are_two_scripts_and_one_is_data(page: tuple[str, Page]) -> None:
    assert [one.get("type") for one in page[1].all("script")] == ["application/json", None]
    data = json.loads(page[1].texts["script"][0])
    assert data["count"] == len(data["pid"]) == sum(data["kind"][1::2])


def test_the_file_is_small(page: tuple[str, Page]) -> None:
    assert len(page[0].encode()) < 1_500_000


def test_what_a_job_wrote_is_never_markup() -> None:
    text = render_html(samples.report(samples.hostile()))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{7*7}}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_embedded_data_cannot_leave_its_element() -> None:
    text = str(embed(["</script><!--", "a&b", "\u2028\u2029"]))
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == ["</script><!--", "a&b", "\u2028\u2029"]


def test_the_culprit_is_in_the_first_screen() -> None:
    text = render_html(samples.report(samples.sleeping()))
    head = text[text.index("<main") : text.index('id="map"')]
    assert "<em>rank 3</em> (pid 41003 on gpu-17) sleeps" in head
    assert "<b>Write to ada</b>" in head
    assert "high confidence" in head


@pytest.mark.parametrize("repeated", [True, False])
def test_what_the_sentence_says_of_a_culprit_is_not_said_again(repeated: bool) -> None:
    report = samples.report(samples.sleeping())
    reason = report.diagnosis.culprits[0].reason
    summary = f"rank 3 {reason}; the others wait" if repeated else "rank 3 is to blame"
    shown = replace(report, diagnosis=replace(report.diagnosis, summary=summary))
    text = render_html(shown)
    head = text[text.index("<main") : text.index('id="map"')]
    assert (f"<p>{reason}</p>" in head) is not repeated


def test_several_culprits_are_named_together() -> None:
    assert "<em>ranks 6-7</em>" in render_html(samples.report(samples.mismatch()))


def test_a_longer_rank_is_not_taken_for_the_culprit() -> None:
    report = samples.report(samples.sleeping())
    other = replace(report.diagnosis, summary="rank 31 sleeps")
    assert "<em>" not in render_html(replace(report, diagnosis=other))


def test_nobody_is_named_when_the_cause_is_unknown() -> None:
    text = render_html(samples.report(samples.unknown()))
    assert "Nobody is named" in text
    assert "culprit</span>" not in text


def test_a_recovered_incident_says_so() -> None:
    report = replace(samples.report(samples.sleeping()), state="recovered")
    assert "recovered by itself" in render_html(report)


def test_an_open_incident_says_when_it_was_seen_to_be_open() -> None:
    """The page stays as it is while the job recovers or ends."""
    made = samples.report(samples.sleeping())
    assert f"still open at {moment(made.reported_at)}" in render_html(made)
    assert "still open" not in render_html(replace(made, kind="manual"))
    assert "still open" not in render_html(replace(made, state="ended"))


def test_a_job_of_which_nothing_could_be_taken_has_a_report_too() -> None:
    made = samples.lost()
    gone = tuple(one for one in made.judgement.ranks if one.capture is None)
    judgement = samples.judge(made.judgement.diagnosis, gone)
    text = render_html(samples.report(samples.Sample(judgement, made.captures)))
    assert "No stack could be taken" in text
    empty = samples.judge(made.judgement.diagnosis, ())
    Page(render_html(samples.report(samples.Sample(empty, made.captures))))


def test_every_rank_of_a_small_job_has_a_cell_with_a_letter() -> None:
    text = render_html(samples.report(samples.sleeping()))
    cells = re.findall(
        r'class="cell ([^"]+)"[^>]*><b>(\d+)</b><i aria-hidden="true">(\w)</i>', text
    )
    assert [(rank, letter) for _, rank, letter in cells] == [
        (str(rank), "I" if rank == 3 else "w") for rank in range(8)
    ]
    assert [rank for css, rank, _ in cells if "culprit" in css] == ["3"]


def test_a_drawn_map_covers_every_rank_once() -> None:
    report = samples.report(samples.scattered(1_000))
    legend = rank_map.kinds(report.ranks)
    which = rank_map.kind_indices(report.ranks, legend)
    for drawing in rank_map.drawings(report.ranks, legend):
        table: dict[int, int] = {}
        for kind, path in drawing.paths:
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v10h-\d+z", path):
                row = int(y) // rank_map.PITCH
                for column in range(drawing.columns):
                    if int(x) <= rank_map.left(column, drawing.per_node) < int(x) + int(width):
                        table[row * drawing.columns + column] = kind
        assert [table[index] for index in range(1_000)] == which
        assert len(table) == 1_000


def test_eight_thousand_ranks_render_quickly() -> None:
    report = samples.report(samples.scattered())
    render_html(samples.report(samples.sleeping()))  # the template is compiled once
    started = time.process_time()
    render_html(report)
    assert time.process_time() - started < 2.0


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")
@pytest.mark.parametrize("name", ["hostile", "huge"])
def test_a_real_browser_runs_it(name: str, tmp_path: Path) -> None:
    """The policy admits our script, which fills the table, and nothing else runs."""
    make: dict[str, Any] = samples.ALL | {"huge": samples.huge}
    file = tmp_path / "report.html"
    file.write_text(render_html(samples.report(make[name]())), encoding="utf-8")
    assert CHROMIUM, "chromium is not installed"
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=2000"
    )
    done = subprocess.run(
        [
            CHROMIUM,
            *flags.split(),
            f"--user-data-dir={tmp_path}/profile",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert 'class="js"' in done.stdout
    assert "CONSOLE" not in done.stderr
    rows = re.findall(r'<td class="k-rank">(\d+)</td>', done.stdout)
    assert rows[0] == ("1" if name == "hostile" else "4711")
    assert len(rows) == (4 if name == "hostile" else 16)
