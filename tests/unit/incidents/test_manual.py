"""Captures by hand: each has a report of its own, however fast they come."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.errors import ExitCode, MldebugError
from mldebug.core.model import Job, RankIdentity, Remark
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.incidents import manual
from mldebug_agents.incidents.manual import Named, choose, store, write_down
from mldebug_agents.jobs.ranks.discovery import Discovery
from shared.incidents import samples

CAPTURE = samples.sleeping().captures[0]


@pytest.fixture
def tools(tmp_path: Path) -> CaptureTools:
    """As much of the tools as storing needs."""
    config = Config(agent=AgentConfig(state_dir=tmp_path))
    return cast(CaptureTools, SimpleNamespace(context=SimpleNamespace(config=config)))


def made() -> Report:
    return samples.report(samples.sleeping())


def test_two_dumps_of_one_second_are_two_reports(tools: CaptureTools, tmp_path: Path) -> None:
    at = samples.TAKEN_AT
    taken = [write_down(tools, CAPTURE, at) for _ in range(3)]
    archive = ReportStore(tmp_path)
    ids = [one.report.id for one in taken]
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert [entry.id for entry in archive.list()] == sorted(ids, reverse=True)
    for one in taken:
        assert one.html_path == archive.folder / one.report.id / "report.html"
        assert archive.load(one.report.id) == one.report
        assert one.report.id in one.html
    later = write_down(tools, CAPTURE, at + 1).report.id
    assert later > max(ids)


def test_a_dump_by_a_clock_that_is_years_ahead_removes_no_report(
    tools: CaptureTools, tmp_path: Path
) -> None:
    """A command has not watched the clock: what it took for 90 days may be a step of it."""
    before = [write_down(tools, CAPTURE, samples.TAKEN_AT - day * 86_400.0) for day in (900, 800)]
    write_down(tools, CAPTURE, samples.TAKEN_AT)
    left = {entry.id for entry in ReportStore(tmp_path).list()}
    assert {one.report.id for one in before} < left


def test_many_at_once_take_no_id_twice(tmp_path: Path) -> None:
    """Processes, in truth: each has a temporary name of its own."""
    archives = [ReportStore(tmp_path) for _ in range(8)]
    for number, archive in enumerate(archives):
        make = archive._make_temporary
        archive._make_temporary = lambda name, make=make, number=number: make(f"{number}-{name}")  # type: ignore[method-assign, misc]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda archive: store(archive, made(), (CAPTURE,)), archives))
    ids = {one.report.id for one in taken}
    assert len(ids) == 8
    assert {entry.id for entry in archives[0].list()} == ids
    assert not list(archives[0].folder.glob(".tmp-*"))


def test_a_report_by_hand_never_takes_the_place_of_the_agents(
    tools: CaptureTools, tmp_path: Path
) -> None:
    agents = write_down(tools, CAPTURE, samples.TAKEN_AT).report.id.removesuffix("-manual")
    assert not (tmp_path / "reports" / agents).exists()


def test_a_second_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "MAX_TURNS", 3)
    archive = ReportStore(tmp_path)
    assert isinstance(store(archive, made(), (CAPTURE,)), Named)
    store(archive, made(), (CAPTURE,))
    with pytest.raises(MldebugError, match="of this second"):
        store(archive, made(), (CAPTURE,))


def test_where_nothing_can_be_stored_the_answer_comes_all_the_same(
    tools: CaptureTools, tmp_path: Path
) -> None:
    (tmp_path / "reports").write_text("in the way")
    taken = write_down(tools, CAPTURE, samples.TAKEN_AT)
    assert taken.html_path is None
    assert "was not stored" in taken.trouble
    assert taken.report.diagnosis.culprits


# --- what a person asked for ----------------------------------------------------------------------------


def found(*pids: int, remarks: tuple[Remark, ...] = ()) -> Discovery:
    jobs = tuple(
        Job(
            id=f"job-{pid}",
            name="train.py",
            launcher="single",
            ranks=(RankIdentity(rank=0, world_size=1, pid=pid),),
        )
        for pid in pids
    )
    return Discovery(jobs=jobs, remarks=remarks)


LIAR = Remark(
    kind="impossible_environment",
    message="RANK=abc is no number: process 77 is not counted as a rank",
    pids=(77,),
)


@pytest.mark.parametrize("others", [(), (1, 2)])
def test_a_process_that_is_no_rank_is_told_why(others: tuple[int, ...]) -> None:
    with pytest.raises(MldebugError, match="RANK=abc is no number"):
        choose(found(*others, remarks=(LIAR,)), 77, None)
    with pytest.raises(MldebugError) as raised:
        choose(found(*others, remarks=(LIAR,)), 78, None)
    assert "RANK" not in str(raised.value)


def test_only_a_few_of_many_jobs_are_listed() -> None:
    with pytest.raises(MldebugError) as raised:
        choose(found(*range(1, 21)), None, "nobody")
    assert "job-4 (train.py, 1 rank) and 16 more" in raised.value.way_out
    assert "job-5" not in raised.value.way_out


@pytest.mark.parametrize(
    ("pid", "wanted", "code", "words"),
    [
        (None, None, ExitCode.FINE, ""),
        (7, None, ExitCode.USAGE, ", so process 7 is none"),
        (None, "train.py", ExitCode.USAGE, ", so train.py is none"),
    ],
)
def test_an_empty_node_is_no_failure_unless_something_was_named(
    pid: int | None, wanted: str | None, code: ExitCode, words: str
) -> None:
    """So that `mldebug dump || page` pages nobody for a node without a job."""
    with pytest.raises(MldebugError) as error:
        choose(Discovery(), pid, wanted)
    assert error.value.message == f"no training job runs on this node{words}"
    assert error.value.exit_code is code
    assert error.value.way_out
