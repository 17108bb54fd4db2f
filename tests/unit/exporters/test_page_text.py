"""The text of a page of metrics, beside client_python's own writer: the same bytes for any page."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition as plain_text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_text
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from mldebug.core.plugins import create_all
from mldebug_exporters.exposition.collect import MetricsPage, collect
from mldebug_exporters.exposition.families import Family, Histogram, Sample
from mldebug_exporters.exposition.text import UNITS, number, write
from mldebug_exporters.prometheus import groups
from shared.web.snapshots import big, moving, snapshot, trapped


class Library(Collector):
    """The same page for client_python."""

    def __init__(self, page: MetricsPage) -> None:
        self.page = page

    def collect(self) -> Iterator[Metric]:
        for family, values in self.page.families:
            unit = family.name.rpartition("_")[2]
            metric = Metric(family.name, family.help, family.kind, unit if unit in UNITS else "")
            for labels, sample in values.items():
                named = dict(zip(family.labels, labels, strict=True))
                value = sample.value
                if not isinstance(value, Histogram):
                    exemplar = Exemplar(dict([sample.exemplar]), 1.0) if sample.exemplar else None
                    metric.add_sample(family.series, named, value, exemplar=exemplar)
                    continue
                total = 0
                for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
                    total += count
                    le = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
                    metric.add_sample(f"{family.name}_bucket", {**named, "le": le}, total)
                metric.add_sample(f"{family.name}_count", named, total)
                metric.add_sample(f"{family.name}_sum", named, value.sum)
            yield metric


def theirs(page: MetricsPage, openmetrics: bool) -> bytes:
    if openmetrics:
        return bytes(openmetrics_text.generate_latest(Library(page)))  # type: ignore[no-untyped-call]
    return plain_text.generate_latest(Library(page))


def page(*samples: Sample) -> MetricsPage:
    families = {one.family.name: one.family for one in samples}
    return MetricsPage(
        tuple(
            (family, {one.labels: one for one in samples if one.family.name == name})
            for name, family in families.items()
        )
    )


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize("runs", [(), (moving(), trapped()), None], ids=["none", "two", "many"])
def test_what_an_agent_exposes_is_written_as_the_library_does(openmetrics: bool, runs: tuple | None) -> None:  # type: ignore[type-arg] # fmt: skip
    view = big(2000) if runs is None else snapshot(*runs)
    made = collect(groups(), view)
    assert write(made, openmetrics) == theirs(made, openmetrics)


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12) | st.sampled_from(['a"b', "a\\b", "a\\\\"])  # fmt: skip


@pytest.mark.parametrize("openmetrics", [False, True])
@given(
    value=st.floats() | st.integers(0, 10**18),
    labels=st.tuples(TEXT, TEXT),
    about=TEXT,
    kind=st.sampled_from(("gauge", "counter", "info")),
    name=st.sampled_from(("mldebug_x", "mldebug_x_seconds", "mldebug_x_bytes")),
)
def test_any_sample_is_written_as_the_library_does(openmetrics: bool, value: float, labels: tuple[str, str], about: str, kind: str, name: str) -> None:  # fmt: skip
    family = Family(name=name, kind=kind, help=about, labels=("zone", "gpu"))  # type: ignore[arg-type]
    exemplar = ("report", "20261128-1a") if kind == "counter" else None
    made = page(Sample(family, labels, value, exemplar))
    assert write(made, openmetrics) == theirs(made, openmetrics)


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize("names", [(), ("run",), ("a", "z")])
def test_a_histogram_is_written_as_the_library_does(openmetrics: bool, names: tuple[str, ...]) -> None:  # fmt: skip
    family = Family(name="mldebug_step_seconds", kind="histogram", help="Steps.", labels=names)
    value = Histogram((0.001, 0.5, 1.0, 2000000.0), (1, 0, 7, 12345678, 2), 9876543.25)
    made = page(Sample(family, tuple(names), value))
    assert write(made, openmetrics) == theirs(made, openmetrics)


def test_a_sample_with_too_few_labels_is_refused() -> None:
    family = Family(name="mldebug_x", kind="gauge", help="", labels=("run", "rank"))
    with pytest.raises(ValueError, match="2 labels, not 1"):
        write(page(Sample(family, ("r",), 1.0)), openmetrics=False)


@given(st.floats())
def test_a_number_is_written_as_go_does(value: float) -> None:
    assert number(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_the_page_has_a_writer() -> None:
    (teller,) = create_all("expositions")
    assert teller.render(big(20), "")[0].startswith(b"# HELP ")
