"""Adds a finished probe to the history of its node, and prints what has changed compared with earlier runs."""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mldebug.config.schema import load_config
from mldebug.core.errors import MldebugError
from mldebug.core.ranksets import fold_nodes
from mldebug.core.redact import clean
from mldebug.probes.history import JudgedSeries, ProbeSeries, judge_all, runs_of, sentence
from mldebug_agents.probes.history.store import add_runs
from mldebug_agents.probes.measurement import Measurement

CHOSEN = "NCCL_ALGO"
SILENT = ("NCCL_DEBUG",)  # what NCCL writes changes no figure
MOST_VARIABLES = 1000  # characters


def record(
    measurement: Measurement,
    nodes: tuple[str, ...],
    kept: Mapping[str, str],
    state_dir: Path | None,
    say: Callable[[str], None],
) -> None:
    """Store the results and print by `say` what has changed. Errors of the disk are printed, not raised.

    `nodes`: where the probe ran, () for this node; `kept`: variables that change the results; `state_dir`: None for the
    configured one.
    """
    here = nodes or (socket.gethostname(),)
    common = series_of(measurement, here, {**kept, **measurement.variables()})
    measured = runs_of(measurement.results, common, time.time())
    try:
        past = add_runs(state_dir or load_config(None).agent.state_dir, measured)
    except MldebugError as error:
        say(f"not kept in the history: {error.message}: {error.way_out}")
        return
    mine = {series for series, _ in measured}
    for one in judge_all((series, runs) for series, runs in past if series in mine):
        if words := line(one):
            say(words)


def line(one: JudgedSeries) -> str:
    """One line that says how a series of measurements has changed; "" where it has not."""
    words = sentence(one)
    return f"{one.standing}: {words}" if words else ""


def series_of(
    measurement: Measurement, nodes: tuple[str, ...], variables: Mapping[str, str]
) -> ProbeSeries:
    """The description that all results of a measurement share; op, bytes and ranks are left empty."""
    about = measurement.about
    others = (
        f"{name}={value}"
        for name, value in sorted(variables.items())
        if name != CHOSEN and not name.startswith(SILENT)
    )
    return ProbeSeries(
        op="",
        bytes=0,
        dtype=measurement.request.dtype,
        ranks=0,
        device=clean(about.gpu or "cpu", 200),
        nodes=fold_nodes(nodes),
        torch=clean(about.torch, 100),
        nccl=clean(about.nccl, 100),
        nccl_algo=clean(variables.get(CHOSEN, ""), 100),
        variables=clean(" ".join(others), MOST_VARIABLES),
    )
