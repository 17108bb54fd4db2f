"""What Prometheus reads: right values, valid in both formats whatever a job calls itself, held within the budget."""

import math
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from mldebug.core.model import Verdict
from mldebug.goodput.account.segments import GpuUse
from mldebug.jobs.logs.records import STEP_BOUNDS, StepTimes
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.filesystems.state import CollectorState, Measure, StorageState
from mldebug_exporters.exposition.collect import collect
from mldebug_exporters.exposition.families import Family, Importance, Sample
from mldebug_exporters.exposition.hidden_labels import PRIVATE, PRIVATE_OF, HiddenLabels
from mldebug_exporters.exposition.text import write
from mldebug_exporters.prometheus import (
    FORGOTTEN,
    OPENMETRICS,
    PLAIN,
    Prometheus,
    groups,
    prefers_openmetrics,
)
from shared.system.hung import wait_until
from shared.web.snapshots import REPORT, hooked, moving, snapshot, stalled, trapped

ASKS_FOR_OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
Golden = Callable[[str, str], None]


def text(observed: Snapshot, accept: str = "", teller: Prometheus | None = None) -> str:
    return (teller or Prometheus()).render(observed, accept)[0].decode()


def families(observed: Snapshot, *, openmetrics: bool = False) -> dict[str, Metric]:
    read = read_openmetrics if openmetrics else read_plain
    result = text(observed, ASKS_FOR_OPENMETRICS if openmetrics else "")
    return {family.name: family for family in read(result)}


def values(observed: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Samples of one series name by their label values, in order of label name."""
    found = [one for family in families(observed).values() for one in family.samples]
    return {
        tuple(value for _, value in sorted(one.labels.items())): one.value
        for one in found
        if one.name == name
    }


# --- the whole text ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "accept"), [("plain", ""), ("openmetrics", ASKS_FOR_OPENMETRICS)])
def test_the_exposition_is_as_recorded(name: str, accept: str, golden: Golden) -> None:
    golden(f"metrics-{name}.txt", text(snapshot(moving(), stalled(), hooked(), trapped()), accept))


def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    assert promtool or "CI" not in os.environ, "install the package `prometheus`"
    if promtool is None:
        pytest.skip("promtool is not here")
    for item in (snapshot(moving(), stalled()), snapshot(), snapshot(moving(), series_budget=100)):
        done = subprocess.run([promtool, "check", "metrics"], input=text(item), text=True,
                              capture_output=True, check=False, timeout=60)  # fmt: skip
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_both_formats_tell_the_same_series() -> None:
    snap = snapshot(moving(), stalled())
    plain, rich = families(snap), families(snap, openmetrics=True)

    def reported(found: dict[str, Metric]) -> list[tuple[str, str, str]]:
        samples = [one for family in found.values() for one in family.samples]
        return sorted((one.name, str(one.labels), str(one.value)) for one in samples)

    assert reported(plain) == reported(rich)


def test_every_family_is_declared_once_with_the_names_of_the_field() -> None:
    declared = [family for group in groups().values() for family in group.families]
    names = [family.name for family in declared]
    assert len(set(names)) == len(names)
    for family in declared:
        assert family.name.startswith("mldebug_")
        assert not family.name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))
        assert not {"pid", "node", "host", "instance", "job"} & set(family.labels)
        assert family.help.endswith(".")
        assert family.absent


# --- values ----------------------------------------------------------------------------------------


def test_a_moving_run_is_up_and_tells_its_progress() -> None:
    snap = snapshot(moving())
    assert values(snap, "mldebug_run_up") == {("5c01",): 1.0}
    assert values(snap, "mldebug_run_step") == {("5c01",): 1200.0}
    assert values(snap, "mldebug_run_loss") == {("5c01",): 2.75}
    assert values(snap, "mldebug_run_progress_age_seconds") == {("5c01",): 1.2}
    assert values(snap, "mldebug_run_progress_timestamp_seconds") == {("5c01",): snap.at - 1.5}
    assert values(snap, "mldebug_incident_open_info") == {}


def test_a_stalled_run_is_down_and_names_its_incident() -> None:
    snap = snapshot(stalled())
    assert values(snap, "mldebug_run_up") == {("7f3a",): 0.0}
    labels = ("stall", REPORT, "7f3a", "rank_waiting")
    assert values(snap, "mldebug_incident_open_info") == {labels: 1.0}
    assert values(snap, "mldebug_incident_since_timestamp_seconds") == {("7f3a",): snap.at - 76}
    assert values(snap, "mldebug_run_ranks_by_class") == {
        ("collective", "7f3a"): 3.0,
        ("sleep", "7f3a"): 1.0,
    }
    assert values(snap, "mldebug_rank_class_info")[("sleep", "2", "7f3a")] == 1.0
    assert values(snap, "mldebug_run_ranks_lost") == {("7f3a",): 1.0}
    stages = values(snap, "mldebug_run_stage")
    assert {stage for (_, stage), value in stages.items() if value} == {"blamed"}
    assert len(stages) == 7


def test_what_is_not_known_is_absent() -> None:
    snap = snapshot(RunState(id="new", name="x", launcher="single"))
    matching = {name for name in families(snap) if values(snap, name)}
    assert "mldebug_run_up" in matching
    assert not matching & {"mldebug_run_step", "mldebug_run_loss", "mldebug_run_last_step_duration_seconds",
                       "mldebug_run_progress_age_seconds", "mldebug_run_progress_timestamp_seconds",
                       "mldebug_run_stall_timeout_seconds", "mldebug_run_ranks_by_class"}  # fmt: skip
    assert values(snap, "mldebug_run_step_duration_seconds_count") == {}


def test_a_run_that_has_ended_vanishes_at_the_next_scrape() -> None:
    teller = Prometheus()
    assert 'run="5c01"' in text(snapshot(moving()), teller=teller)
    assert 'run="5c01"' not in text(snapshot(), teller=teller)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e-300, 1.5e308])
def test_a_loss_is_what_the_log_said(loss: float) -> None:
    snap = snapshot(msgspec.structs.replace(moving(), loss=loss))
    (found,) = values(snap, "mldebug_run_loss").values()
    assert found == loss or (math.isnan(loss) and math.isnan(found))


def test_step_times_are_a_cumulative_histogram() -> None:
    times = StepTimes(counts=(1, 0, 2, *[0] * (len(STEP_BOUNDS) - 3), 4), seconds=2500.5)
    snap = snapshot(msgspec.structs.replace(moving(), step_times=times))
    found = values(snap, "mldebug_run_step_duration_seconds_bucket")
    bounds = {bound: value for (bound, _), value in found.items()}
    assert (bounds["0.01"], bounds["0.05"], bounds["0.1"], bounds["600.0"]) == (1, 1, 3, 3)
    assert bounds["+Inf"] == 7
    assert values(snap, "mldebug_run_step_duration_seconds_count") == {("5c01",): 7}
    assert values(snap, "mldebug_run_step_duration_seconds_sum") == {("5c01",): 2500.5}


# --- incidents -------------------------------------------------------------------------------------


def test_every_kind_and_verdict_is_there_from_the_start() -> None:
    found = values(snapshot(incidents={}), "mldebug_incidents_total")
    expected = {(kind, str(one)) for kind in ("stall", "abnormal_end") for one in Verdict}
    expected.add(("slowdown", "straggler"))
    assert set(found) == expected
    assert set(found.values()) == {0.0}


def test_a_kind_that_nobody_expected_is_counted_all_the_same() -> None:
    found = values(snapshot(incidents={"manual/unknown": 3}), "mldebug_incidents_total")
    assert found["manual", "unknown"] == 3


def test_the_newest_report_is_the_exemplar() -> None:
    snap = snapshot(moving())
    counters = families(snap, openmetrics=True)["mldebug_incidents"].samples
    found = {one.labels["verdict"]: one.exemplar.labels for one in counters if one.exemplar}
    assert found == {"rank_waiting": {"report": REPORT}}
    assert REPORT not in text(snap)


@pytest.mark.parametrize(("length", "there"), [(122, True), (123, False)])
def test_an_exemplar_is_never_longer_than_the_standard_allows(length: int, there: bool) -> None:
    snap = snapshot(last_report={"stall/rank_waiting": "7" * length})
    counters = families(snap, openmetrics=True)["mldebug_incidents"].samples
    assert any(one.exemplar for one in counters) is there


@pytest.mark.parametrize("name", ['"', 'a"}', "a b", "é", "\ud800"])
def test_what_is_no_id_is_no_exemplar(name: str) -> None:
    counters = families(snapshot(last_report={"stall/rank_waiting": name}), openmetrics=True)
    assert not any(one.exemplar for one in counters["mldebug_incidents"].samples)


# --- hostile names ---------------------------------------------------------------------------------

NAMES = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=30),  # surrogates too
    st.sampled_from(['"', "\\", "\\n", "\n", "\r", "a\\", 'x"} 1\nup 0', "\x00", "\ud800", "é" * 9, "x" * 10_000]),
)  # fmt: skip
NUMBERS = st.one_of(st.none(), st.floats())


@st.composite
def runs(draw: st.DrawFn) -> RunState:
    return RunState(
        id=draw(NAMES), name=draw(NAMES), launcher=draw(NAMES), user=draw(NAMES), loss=draw(NUMBERS),
        classes=draw(st.dictionaries(st.integers(), NAMES, max_size=3)), incident=draw(NAMES), verdict=draw(NAMES),
        incident_kind=draw(NAMES), incident_since=draw(NUMBERS), stage=draw(NAMES), progress_at=draw(NUMBERS),
        step=draw(st.one_of(st.none(), st.integers(0, 10**15))), step_seconds=draw(NUMBERS),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(runs(), max_size=4),
    st.dictionaries(NAMES, st.integers(0, 2**53), max_size=3),
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.sampled_from([100, 5000]),
)
def test_the_text_is_valid_whatever_a_job_calls_itself(
    found: list[RunState], incidents: dict[str, int], reports: dict[str, str], budget: int
) -> None:
    snap = snapshot(*found, incidents=incidents, last_report=reports, series_budget=budget)
    for openmetrics in (False, True):
        samples = [
            one for family in families(snap, openmetrics=openmetrics).values() for one in family.samples
        ]  # fmt: skip
        keys = [(one.name, *sorted(one.labels.items())) for one in samples]
        assert len(set(keys)) == len(keys)
        assert {one.name.partition("_")[0] for one in samples} == {"mldebug"}
        (count,) = [one.value for one in samples if one.name == "mldebug_series"]
        assert count == len(samples)
        assert max(len(value) for one in samples for value in [*one.labels.values(), ""]) <= 200


def test_two_runs_with_one_id_are_exposed_once_and_counted() -> None:
    snap = snapshot(moving(), msgspec.structs.replace(moving(), step=7))
    assert values(snap, "mldebug_run_step") == {("5c01",): 1200.0}
    dropped = values(snap, "mldebug_series_dropped")
    assert dropped["mldebug_run_step", "duplicate"] == 1
    assert dropped["mldebug_run_step_duration_seconds", "duplicate"] == len(STEP_BOUNDS) + 3


# --- the budget ------------------------------------------------------------------------------------


def total(observed: Snapshot) -> int:
    return sum(len(family.samples) for family in families(observed).values())


def test_everything_is_there_within_the_budget() -> None:
    snap = snapshot(moving(), stalled())
    assert values(snap, "mldebug_series") == {(): total(snap)}
    assert values(snap, "mldebug_series_dropped") == {}
    assert values(snap, "mldebug_series_budget") == {(): 5000}
    fits = msgspec.structs.replace(snap, series_budget=total(snap))
    assert values(fits, "mldebug_series_dropped") == {}


def test_over_the_budget_whole_families_go_ranks_first() -> None:
    whole = snapshot(moving(ranks=8), stalled(ranks=800))
    ranks = values(
        msgspec.structs.replace(whole, series_budget=total(whole) - 1), "mldebug_series_dropped"
    )
    assert ranks == {("mldebug_rank_class", "budget"): 800}

    tight = msgspec.structs.replace(whole, series_budget=115)
    left = families(tight)
    assert total(tight) <= 115
    assert {"mldebug_run_up", "mldebug_run_step"} <= set(left)
    assert not {"mldebug_run_stage", "mldebug_rank_class_info"} & set(left)
    dropped = values(tight, "mldebug_series_dropped")
    lost = sum(int(value) for value in dropped.values())
    assert total(whole) - lost + len(dropped) == total(tight)


def test_what_gpu_time_was_used_for_goes_before_anything_that_tells_a_stall() -> None:
    """Eleven series of each run."""
    used = dict.fromkeys(GpuUse, 1.0)
    many = [msgspec.structs.replace(moving(f"r{number}"), gpu_seconds=used) for number in range(99)]
    whole = snapshot(*many)
    tight = msgspec.structs.replace(whole, series_budget=total(whole) - 3000)
    dropped = {name for name, _ in values(tight, "mldebug_series_dropped")}
    declared = (one for group in Prometheus().groups.values() for one in group.families)
    assert "mldebug_run_gpu_seconds" in dropped
    assert not dropped & {one.name for one in declared if one.importance < Importance.DETAIL}


def test_the_agent_and_its_incidents_are_never_left_out() -> None:
    snap = snapshot(*(moving(f"r{number}") for number in range(500)), series_budget=100)
    left = {name: family for name, family in families(snap).items() if family.samples}
    assert {"mldebug_build_info", "mldebug_incidents", "mldebug_series", "mldebug_runs"} <= set(
        left
    )
    assert not [name for name in left if name.startswith("mldebug_run_")]


# --- a group that fails ------------------------------------------------------------------------------


class Broken:
    """A metrics file with a bug."""

    families = (Family(name="mldebug_broken", kind="gauge", help="x.", importance=Importance.RUN),)

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        raise KeyError("x")


def test_a_group_that_fails_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    teller = Prometheus()
    teller.groups = {"broken": Broken(), **teller.groups}
    result = text(snapshot(moving()), teller=teller)
    assert 'mldebug_metrics_success{group="broken"} 0' in result
    assert 'mldebug_run_up{run="5c01"} 1' in result
    assert "metrics broken failed: KeyError" in caplog.text


# --- rendered ahead of the scrape ----------------------------------------------------------------------


class Counting(Broken):
    """Notes which snapshots are rendered."""

    families = ()

    def __init__(self) -> None:
        self.observed: list[Snapshot] = []

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        self.observed.append(snapshot)
        return iter(())


def counting(pace: float) -> tuple[Prometheus, Counting]:
    teller, counter = Prometheus(pace), Counting()
    teller.groups = {"counting": counter}
    return teller, counter


def test_pseudonyms_stand_for_what_is_private_and_join_as_before() -> None:
    snap = snapshot(moving(), stalled(), hooked(), trapped())
    open_, hidden = collect(groups(), snap), collect(groups(), snap, HiddenLabels())
    private = 0
    for (family, shown), (_, values) in zip(open_.families, hidden.families, strict=True):
        names = PRIVATE | PRIVATE_OF.get(family.name, frozenset())
        assert len(shown) == len(values)
        for before, after in zip(shown, values, strict=True):
            for label, was, now in zip(family.labels, before, after, strict=True):
                private += label in names and bool(was)
                assert (now == was) == (label not in names or not was), (family.name, label)
                assert label not in names or not was or re.fullmatch("~[0-9a-f]{8}", now)
    assert private > 4
    other = collect(groups(), snap, HiddenLabels())
    assert write(other, False) != write(hidden, False)  # another agent has another key


def test_the_path_of_a_users_directory_is_hidden_and_that_of_the_configuration_is_not() -> None:
    measures = (
        Measure(metric="mldebug_tree_bytes", labels=("/home/ada/run",), value=1.0, uids=(1001,)),
        Measure(metric="mldebug_tree_bytes", labels=("/scratch",), value=2.0),
    )
    storage = StorageState(parts=(CollectorState(name="trees", at=0.0, measures=measures),))
    text = write(
        collect(groups(), msgspec.structs.replace(snapshot(), storage=storage), HiddenLabels()),
        False,
    )
    assert b'path="/scratch"' in text
    assert b"home/ada" not in text
    assert re.search(rb'mldebug_tree_bytes\{path="~[0-9a-f]{8}"\} 1', text)


def test_every_private_label_is_one() -> None:
    labels = {
        label for group in groups().values() for one in group.families for label in one.labels
    }
    assert labels >= PRIVATE
    assert {one.name for group in groups().values() for one in group.families} >= PRIVATE_OF.keys()


def test_before_the_first_snapshot_there_is_nothing_to_scrape() -> None:
    assert Prometheus().scrape() is None


def test_any_number_of_scrapes_of_one_snapshot_render_once() -> None:
    teller, counter = counting(0.01)
    teller.publish(snap := snapshot())
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(teller.scrape())) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert counter.observed == [snap]
    assert len(results) == 16


def test_while_somebody_scrapes_the_next_text_lies_ready() -> None:
    teller, counter = counting(0.01)
    teller.publish(snapshot())
    teller.scrape()
    teller.publish(newer := snapshot(moving()))
    wait_until(lambda: counter.observed[-1] is newer)
    rendered = len(counter.observed)
    teller.scrape()
    assert len(counter.observed) == rendered


def test_what_nobody_scrapes_is_not_rendered() -> None:
    now = [0.0]
    teller, counter = counting(0.01)
    teller._clock = lambda: now[0]
    teller.publish(snapshot())
    teller.scrape()
    now[0] = FORGOTTEN + 1
    teller.publish(late := snapshot(moving()))
    wait_until(lambda: not teller._news.is_set())
    assert late not in counter.observed
    teller.scrape()
    assert counter.observed[-1] is late


def test_a_scrape_never_gets_what_is_older_than_two_paces() -> None:
    now = [0.0]
    teller, counter = counting(1000.0)
    teller._clock = lambda: now[0]
    teller.publish(snapshot())
    teller.scrape()
    wait_until(lambda: not teller._news.is_set())
    teller.publish(newer := snapshot(moving()))
    teller.scrape()
    assert newer not in counter.observed
    now[0] = 2000.0
    teller.scrape()
    assert counter.observed[-1] is newer


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (ASKS_FOR_OPENMETRICS, True),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.4", True),
        ("application/openmetrics-text; q=0.3, text/plain; q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=many", False),
        ("application/openmetrics-textual", False),
        (",;,q=1;;", False),
    ],
)  # fmt: skip
def test_the_scraper_chooses_the_format(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics
    page, kind = Prometheus().render(snapshot(), accept)
    assert kind == (OPENMETRICS if openmetrics else PLAIN)
    assert page.endswith(b"# EOF\n") is openmetrics


def test_a_snapshot_goes_to_people_and_back_with_its_step_times() -> None:
    value: Any = snapshot(moving())
    assert msgspec.json.decode(msgspec.json.encode(value), type=Snapshot) == value


def test_questions_without_an_answer_are_counted_by_way() -> None:
    decoded = Prometheus().render(snapshot(unanswered={"dump file": 3, "NCCL RAS": 0}))[0].decode()
    assert 'mldebug_unanswered_total{way="dump file"} 3' in decoded
    assert 'mldebug_unanswered_total{way="NCCL RAS"} 0' in decoded


def test_who_was_turned_away_is_counted_by_reason() -> None:
    decoded = (
        Prometheus().render(snapshot(cluster_refused={"certificate": 3, "name": 0}))[0].decode()
    )
    assert 'mldebug_cluster_refused_total{reason="certificate"} 3' in decoded
    assert 'mldebug_cluster_refused_total{reason="name"} 0' in decoded
    assert "mldebug_cluster_refused_total{" not in Prometheus().render(snapshot())[0].decode()
