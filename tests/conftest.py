"""What all tests share: golden files with one switch to update them, and the options."""

import compileall
import gc
import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from shared.system import last_words
from shared.system.patience import PATIENCE, be_patient_with_processes

be_patient_with_processes()
# A shell lets what it starts in the background ignore this, which all that the tests start would inherit
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
GOLDEN = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[1]
CODE = ("mldebug", "agents", "exporters", "tests/jobs")
HYPOTHESIS = b"from hypothesis import"
ASK_BY_SCHEMA = ("test_peer_api.py", "test_http_fuzz.py", "test_hub_fuzz.py")
# Of this process alone: asserts are rewritten once, which is 7 s of a collection in place of 21
sys.dont_write_bytecode = False
# Syntax trees of all sources, which many tests make, hold no circles: to look through them 700 objects later is a quarter of their CPU time
gc.set_threshold(50_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Compile what the tests start hundreds of times: most of it is told to write no bytecode, and some of it may not."""
    for folder in CODE:
        compileall.compile_dir(ROOT / folder, quiet=2)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """What takes long to import comes with the file that needs it: `.ci/run` starts a hundred pytests."""
    if file_path.name in ASK_BY_SCHEMA:
        parent.config.pluginmanager.import_plugin("schemathesis.pytest.plugin")
    if file_path.name.startswith("test_") and HYPOTHESIS in file_path.read_bytes():
        _set_no_deadline()


def _set_no_deadline() -> None:
    """A busy machine is no defect. Before the file is imported: a test takes the settings of that moment."""
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("no deadline", deadline=None)
    hypothesis.settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden` and `--each-job-once`."""
    parser.addoption("--update-golden", action="store_true", help="write what the tests get")
    once = "real jobs that two users run: each by one of them in turns"
    parser.addoption("--each-job-once", action="store_true", help=once)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who waits longer may take longer."""
    usual = float(config.getini("timeout"))
    for item in items if PATIENCE > 1 else ():
        limit = item.get_closest_marker("timeout")
        seconds = limit.args[0] if limit and limit.args else usual
        item.add_marker(pytest.mark.timeout(seconds * PATIENCE), append=False)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the collector need not look at them again (a fifth of the CPU time)."""
    gc.collect()
    gc.freeze()


COSTS: Counter[str] = Counter()  # seconds of CPU by file of tests, those of ended children too


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Add up what the tests of each file cost."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        COSTS[item.nodeid.partition("::")[0]] += sum(os.times()[:4]) - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the agents said that it had started."""
    report = yield
    if call.when == "setup":
        last_words.KEPT.clear()
    if report.failed:
        report.sections += [(f"Log of {whose}", text) for whose, text in last_words.KEPT]
    return report


def pytest_sessionfinish() -> None:
    """Leave the costs where `.ci/run` collects them."""
    if streams := os.environ.get("STREAMS"):
        with (Path(streams) / "costs").open("a") as file:
            file.writelines(f"{seconds:.1f} {name}\n" for name, seconds in COSTS.items())


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that leaves SIGPIPE at its default ends the run without a word, in whoever writes to a closed connection later."""
    left = signal.getsignal(signal.SIGPIPE)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    assert left == signal.SIG_IGN, f"{item.nodeid} has changed what SIGPIPE does"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return `check(name, text)`: `text` has to be what `tests/golden/<name>` holds."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file} is missing; make it with: pytest --update-golden"
        assert text == file.read_text(encoding="utf-8")

    return check
