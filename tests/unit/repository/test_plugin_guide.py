"""Every example in docs/plugins.md is made and called: what the guide shows really works."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.alerts.model import EventMessage
from mldebug.config.schema import Config
from mldebug.core.plugins import PACKAGES, NoOptions
from mldebug.core.yaml_reader import parse
from mldebug.fleet.batches import BatchAnswer, packed
from mldebug.fleet.hub_model import EventFilter, ReceivedBatch
from mldebug.storage.checkpoints.layouts import Checkpoint, Completeness, FileEntry
from mldebug.web.page import PageRequest
from mldebug_agents.cli.completion.request import CompletionRequest
from mldebug_agents.cluster.fanout.messages import FanoutRequest
from mldebug_agents.hardware.gpu.child.messages import NAME
from mldebug_agents.hardware.gpu.child.server import serve
from mldebug_agents.hardware.gpu.node_reader import node_reader
from mldebug_agents.system.child.programs import Completed, FakeSpawner
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner
from shared.fleet.fleet_events import fault
from shared.hardware.vendorfiles import vendor_file
from shared.web.snapshots import snapshot

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/plugins.md"
EXAMPLE = re.compile(
    r"^## [^\n]*`(\w+)/`\n(?:(?!^## ).)*?```python\n(.*?)```", re.DOTALL | re.MULTILINE
)


class NoCase:
    """A case in which nobody is on a tape."""

    def named(self, _: str) -> tuple[()]:
        return ()


def detector(made: Any, _: Any, __: Path) -> None:
    assert made.judge(NoCase()) is None


def launcher(made: Any, _: Any, __: Path) -> None:
    found = made.identify({"FLOCK_ID": "1", "FLOCK_SIZE": "2"}, ())
    assert (found.rank, found.world_size) == (1, 2)
    assert made.is_launcher("flock", ())


def verb(made: Any, _: Any, __: Path) -> None:
    result = CliRunner().invoke(made, ["--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def values(made: Any, _: Any, __: Path) -> None:
    assert [value.word for value in made.values(CompletionRequest())] == ["r1"]


def log_format(made: Any, _: Any, __: Path) -> None:
    record = made.parse("it=12 L=0.5")
    assert (record.step, record.loss) == (12, 0.5)
    assert made.parse("it is 12") is None


def layout(made: Any, _: Any, __: Path) -> None:
    part = FileEntry("0.mypart", size=1)
    cut, whole = (Checkpoint(name="step_1", files=(part, *more)) for more in ((), (FileEntry("DONE"),)))  # fmt: skip
    assert made.fits(cut)
    assert made.judge(cut).state is not Completeness.COMPLETE
    assert made.judge(whole).state is Completeness.COMPLETE


def transport(made: Any, _: Any, __: Path) -> None:
    wanted = FanoutRequest(target="job", python="python3", arguments=("dump",), timeout=5.0)
    assert made.plan(wanted, FakeSpawner(lambda _: Completed())).order.nodes == ("a1", "a2")


def scheduler(made: Any, _: Any, __: Path) -> None:
    starter = FakeSpawner(lambda _: Completed(returncode=0, stdout=b"one two"))
    assert [job.id for job in made.ask(starter, nodes=False).jobs] == ["one", "two"]


def vendor(_: Any, example: str, folder: Path) -> None:
    """Through the child that reads GPUs, as an agent does."""
    with vendor_file(folder, "abacus", example), Spawner({NAME: serve}) as spawner:
        config = parse("gpus: {main: {kind: abacus, watts: 4}}", "mldebug.yaml", Config)
        reader = node_reader(spawner, Host(), config.gpus)
        (watch,), (full,) = reader.watch().gpus, reader.full().gpus
        reader.close()
    assert (watch.uuid, watch.index, watch.power_watts, watch.vendor) == ("A-1", 0, 4.0, "abacus")
    assert (full.name, full.vendor) == ("Abacus 1", "abacus")


def page(made: Any, _: Any, __: Path) -> None:
    assert made.build(PageRequest(snapshot=snapshot())).seconds == 3600.0


def metrics(made: Any, _: Any, __: Path) -> None:
    assert [sample.value for sample in made.samples(snapshot())] == [0]


def channel(made: Any, _: Any, folder: Path) -> None:
    message = EventMessage(
        id="1", key="k", state="firing", kind="stall", severity="critical", node="n1",
        sentence="it stands", subject="rank 2 sleeps", started="2026-11-21T05:50:41Z",
    )  # fmt: skip
    made.send(message)
    assert (folder / "device").read_text() == "rank 2 sleeps"


def action(made: Any, _: Any, folder: Path) -> None:
    plan: Any = made.plan(None)
    assert not (folder / "device").exists()
    assert plan.do().words == "rang the bell"
    assert (folder / "device").read_text() == "1"


def hub_store(made: Any, text: str, folder: Path) -> None:
    event = fault()
    assert made.add([[event], [event]], 0.0) == [1, 0]
    assert made.find(EventFilter(node="n1")) == [event]


def hub_transport(made: Any, text: str, folder: Path) -> None:
    (folder / "1.batch").write_bytes(packed("n1", "1", [fault()], {}))
    made._folder = folder
    taken: list[ReceivedBatch] = []
    made.start(lambda came: taken.append(came) or BatchAnswer())
    assert [one.batch.node for one in taken] == ["n1"]
    assert not list(folder.iterdir())


CALLS: dict[str, Callable[[Any, Any, Path], None]] = {
    "actions": action,
    "channels": channel,
    "checkpoints": layout,
    "commands": verb,
    "completions": values,
    "detectors": detector,
    "gpus": vendor,
    "hub_stores": hub_store,
    "hub_transports": hub_transport,
    "launchers": launcher,
    "logs": log_format,
    "metrics": metrics,
    "pages": page,
    "probes": verb,
    "schedulers": scheduler,
    "transports": transport,
}
EXAMPLES = dict(EXAMPLE.findall(GUIDE.read_text()))


def test_each_kind_but_the_exposition_has_an_example() -> None:
    assert set(EXAMPLES) == set(CALLS) == set(PACKAGES) - {"expositions"}


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_an_example_of_the_guide_works(kind: str, tmp_path: Path) -> None:
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLES[kind], f"{GUIDE} {kind}", "exec"), module)
    options = module.get("Options", NoOptions)
    device = {"device": tmp_path / "device"} if "device" in getattr(options, "__struct_fields__", ()) else {}  # fmt: skip
    CALLS[kind](module["create"](options(**device)), EXAMPLES[kind], tmp_path)


@pytest.mark.parametrize("command", [("check",), ("format", "--diff")], ids=["lint", "format"])
def test_the_linter_takes_an_example_as_it_stands(command: tuple[str, ...]) -> None:
    """Whoever copies one into the folder of its kind has `make check` green at once."""
    pytest.importorskip("ruff")
    wrong = {}
    for kind, example in EXAMPLES.items():
        package = PACKAGES[kind][0].split(".")
        (base,) = (one for one in (ROOT, ROOT / "agents", ROOT / "exporters") if (one / package[0]).is_dir())  # fmt: skip
        file = base.joinpath(*package, "example.py")
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--stdin-filename", str(file), "-"],
            input=example, capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            wrong[kind] = done.stdout + done.stderr
    assert wrong == {}
