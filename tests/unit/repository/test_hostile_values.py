"""The hostile jobs of the tests say the worst for everything that we read: what is read newly needs a row in tests/shared/jobs/hostile.py."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.plugins import create_all, names
from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.gpu.visible_devices import visible
from mldebug.jobs.known_issues.match import allowed
from mldebug.jobs.schedulers.job_arrays import array_id
from mldebug_agents.jobs.launcher import Launcher, NodeLauncher, pod_list
from mldebug_agents.jobs.logs.nccl_files import debug_file
from mldebug_agents.jobs.ranks.libraries import recorder_settings
from mldebug_agents.jobs.ranks.ras_address import setting
from shared.jobs.hostile import (
    BESIDE,
    ELSEWHERE,
    FILES,
    LINES,
    NO_VARIABLES,
    SHARED,
    VARIABLES,
)
from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
AGENTS = ROOT / "agents/mldebug_agents"
OF_PERSONS = ("cli", "probes", "support")  # folders of both roots: what a person starts
NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|RANK")
READS = frozenset(
    ["read_file", "read_tail", "read_from", "read_heads", "read_lines", "read_memory", "list_folder", "write_byte"]
)  # fmt: skip
LAUNCHERS_WORDS = (
    (),
    ("python", "-m", "torch.distributed.run", "--nnodes", "2", "x.py"),
    ("python", "-m", "torch.distributed.run", "x.py"),
    ("python", "/x/accelerate", "launch", "--num_machines", "2", "x.py"),
)


def _constants() -> Iterator[str]:
    for root in (ROOT / "mldebug", AGENTS):
        for file in root.rglob("*.py"):
            if file.relative_to(root).parts[0] in OF_PERSONS:
                continue
            for node in nodes_of(tree_of(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


class EnvironmentSpy(dict[str, str]):
    """An environment that notes the names it is asked for."""

    names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def _read(environ: Mapping[str, str], launchers: list[Launcher]) -> None:
    """All that looks at the environment of a process."""
    for launcher in launchers:
        for argv in LAUNCHERS_WORDS:
            launcher.identify(environ, argv)
            if isinstance(launcher, NodeLauncher):
                launcher.pending(environ, argv)
    gpus = (GpuReading(index=0, uuid="GPU-0", name="a"), GpuReading(index=1, uuid="GPU-1", name="b"))  # fmt: skip
    others: tuple[Callable[[Mapping[str, str]], object], ...] = (allowed, array_id, debug_file, recorder_settings, setting, lambda one: visible(one, gpus))  # fmt: skip
    for one in others:
        one(environ)
    pod_list(environ, 4)


def _asked() -> frozenset[str]:
    """The names that are looked up in environments where nothing, everything, or one thing beside a rank stands."""
    launchers: list[Launcher] = create_all("launchers")
    _read(EnvironmentSpy(), launchers)
    for value in ("1", "2", ""):
        for _ in range(3):
            _read(EnvironmentSpy(dict.fromkeys(EnvironmentSpy.names, value)), launchers)
        for name in sorted(EnvironmentSpy.names):
            _read(EnvironmentSpy({"RANK": "0", "WORLD_SIZE": "2", name: value}), launchers)
    return frozenset(EnvironmentSpy.names - {""})


def test_every_variable_that_is_read_of_a_job_has_a_row() -> None:
    named, looked_up = set(filter(NAME.fullmatch, _constants())), _asked()
    new = (named | looked_up) - VARIABLES - NO_VARIABLES
    assert not new, f"{sorted(new)}: rows are missing in tests/shared/jobs/hostile.py"
    assert not (VARIABLES | NO_VARIABLES) - named - looked_up, "rows that nobody reads any more"
    assert not looked_up & NO_VARIABLES
    assert {"RANK", "PET_RDZV_ID", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_ERROR_FILE"} <= VARIABLES  # fmt: skip


def test_every_log_format_has_a_line() -> None:
    assert LINES.keys() == set(names("logs")) - {"regex"}  # a person's own


@pytest.mark.parametrize(("kind", "line"), LINES.items())
def test_the_line_is_one_of_its_format(kind: str, line: str) -> None:
    (found,) = (one for one in create_all("logs") if type(one).__module__.endswith(f".{kind}"))
    assert found.parse(line.format(1234))


def test_every_reader_of_files_of_jobs_has_a_file() -> None:
    found = set()
    for file in AGENTS.rglob("*.py"):
        tree = tree_of(file.read_text())
        calls = (node.func for node in nodes_of(tree) if isinstance(node, ast.Call))
        if any(isinstance(one, ast.Attribute) and one.attr in READS for one in calls):
            found.add(str(file.relative_to(AGENTS)))
    new = found - FILES.keys() - {"system/reader.py"}
    assert not new, f"{sorted(new)}: rows are missing in tests/shared/jobs/hostile.py"
    assert not FILES.keys() - found, "rows that nobody needs any more"
    for what in FILES.values():
        in_the_test = what in (*BESIDE, *SHARED) or what in ELSEWHERE
        assert in_the_test or what.startswith(("no job's: ", "memory of a rank: ", "carries out "))
