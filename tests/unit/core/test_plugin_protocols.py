"""Each kind of plugin has one type, which stands beside its plugins and which every `create` is annotated with."""

from importlib import import_module
from typing import Any, get_type_hints

import click
import pytest

from mldebug.alerts.model import Channel
from mldebug.core.plugins import PACKAGES, load, names
from mldebug.diagnosis.detectors import Detector
from mldebug.fleet.hub_model import FleetStore, HubTransport
from mldebug.jobs.logs.records import LogFormat
from mldebug.status.exposition import Exposition
from mldebug.storage.checkpoints.model import Layout
from mldebug.web.page import WebPage
from mldebug_agents.alerts.action_runner.model import Action
from mldebug_agents.cli.completion.values import ValueSource
from mldebug_agents.cluster.fanout.messages import Transport
from mldebug_agents.hardware.gpu.vendors import Vendor
from mldebug_agents.jobs.launcher import Launcher
from mldebug_agents.jobs.schedulers import Scheduler
from mldebug_exporters.exposition.families import MetricGroup

TYPES: dict[str, type[Any]] = {
    "actions": Action,
    "channels": Channel,
    "checkpoints": Layout,
    "commands": click.Command,
    "completions": ValueSource,
    "detectors": Detector,
    "expositions": Exposition,
    "gpus": Vendor,
    "hub_stores": FleetStore,
    "hub_transports": HubTransport,
    "launchers": Launcher,
    "logs": LogFormat,
    "metrics": MetricGroup,
    "pages": WebPage,
    "probes": click.Command,
    "schedulers": Scheduler,
    "transports": Transport,
}


def test_each_kind_has_its_type() -> None:
    assert TYPES.keys() == PACKAGES.keys()


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in sorted(PACKAGES) for name in names(kind)]
)
def test_create_is_annotated_with_the_type_of_its_kind(kind: str, name: str) -> None:
    made = get_type_hints(load(kind, name).create)["return"]
    assert TYPES[kind] in made.__mro__  # itself, or what can do more


@pytest.mark.parametrize("kind", sorted(PACKAGES.keys() - {"commands", "probes"}))
def test_the_type_stands_beside_its_plugins(kind: str) -> None:
    """Those of commands are of click. The other folders of a kind lie inside the first one."""
    first = PACKAGES[kind][0]
    assert getattr(import_module(first), TYPES[kind].__name__) is TYPES[kind]
    assert [folder for folder in PACKAGES[kind] if not folder.startswith(first)] == []
