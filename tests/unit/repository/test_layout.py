"""The rules that no linter knows."""

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from mldebug.core.plugins import PACKAGES, load, names, options_of

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/plugins.md"
ROOTS = (
    "mldebug",
    "agents/mldebug_agents",
    "agents/mldebug_training",
    "exporters/mldebug_exporters",
)
from shared.system.sources import tree_of

PLUGINS = [(kind, name) for kind in PACKAGES for name in names(kind)]


@pytest.mark.parametrize("folder", ["agents", "exporters", "tests", "deploy"])
def test_a_source_root_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", ROOTS)
def test_every_package_is_typed_and_says_what_it_is(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_a_plugin_file_has_a_docstring_options_and_create(kind: str, name: str) -> None:
    module = load(kind, name)
    first = (module.__doc__ or "").strip().splitlines()[0]
    assert 10 <= len(first) <= 120
    assert first.endswith(".")
    assert module.create(options_of(module)()) is not None


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "mldebug").rglob("*.py")) + sorted((ROOT / "agents").rglob("*.py")),
    ids=str,
)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    tree = tree_of(path.read_text())
    assert ast.get_docstring(tree) or not tree.body


def test_only_one_module_reads_lists_that_others_wrote() -> None:
    """ClusterShell's parsers have no bound: `n[1-60000]x[1-60000]` of one job would end the agent."""
    with_clustershell = {
        str(path.relative_to(ROOT))
        for root in ROOTS
        for path in (ROOT / root).rglob("*.py")
        if re.search(r"\b(NodeSet|RangeSet\w*)\b", path.read_text())
    }
    assert with_clustershell == {"mldebug/core/ranksets.py"}


def test_one_link_serves_all_children() -> None:
    """Frames, deadlines and descriptors of requests to a child are the matter of one module; who else reads a socket talks to others."""
    others = {
        "capture/nccl_ras/conversation.py": "NCCL, in its own protocol",
        "cluster/fanout/child.py": "whether the parent is there still",
        "cluster/peers/net/client.py": "HTTP to another node",
        "cluster/peers/net/connect_pool.py": "wakes its own thread",
        "system/child/helper.py": "the helper that starts children",
        "system/child/reader_writes.py": "HTTP to the worker server that PyTorch opens in a rank",
        "system/spawn.py": "to the helper that starts children",
    }
    agents = ROOT / "agents/mldebug_agents"
    reads = re.compile(r"\.(?:recv|recv_into|recvmsg|recv_fds|send_fds|sendmsg)\(")
    found = {
        str(path.relative_to(agents))
        for path in agents.rglob("*.py")
        if reads.search(path.read_text())
    }
    assert found == {*others, "system/child/link.py"}


def test_every_direct_dependency_is_pinned_and_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    lines = [
        *project["project"]["dependencies"],
        *itertools.chain.from_iterable(extras.values()),
        *groups["test"],
        *groups["lint"],
        *groups["docs"],
    ]
    wanted = {re.split(r"[<>=!~\[; ]", line)[0].lower() for line in lines}
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    explained = (ROOT / "docs/dependencies.md").read_text().lower()
    assert wanted <= pinned
    assert not [name for name in wanted if f"`{name}`" not in explained]


def test_what_is_shipped_is_pinned_by_hash_in_the_same_versions() -> None:
    """Each requirement has hashes, all direct dependencies are there, and versions are those that the tests run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = dict(line.lower().split(" ")[0].split("==") for line in lines if "==" in line)
    found: dict[str, str] = {}
    for name in ("run", "build"):
        text = (ROOT / f"deploy/requirements/{name}.txt").read_text()
        parts = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
        assert not [part for part in parts if "--hash=sha256:" not in part]
        found |= {
            part.split("==")[0]: re.split(r"[ ;\\]", part.split("==")[1])[0] for part in parts
        }
    wanted = {re.split(r"[<>=!~\[; ]", line)[0].lower() for line in direct}
    assert wanted | {"hatchling"} <= found.keys()
    assert {name: found[name] for name in found.keys() & tested.keys()} == {
        name: tested[name] for name in found.keys() & tested.keys()
    }


@pytest.mark.parametrize("file", ["deploy/debian/build-deb", "deploy/kubernetes/Dockerfile"])
def test_what_is_shipped_is_installed_by_hash_alone(file: str) -> None:
    text = (ROOT / file).read_text()
    installs = [line for line in text.split("install --")[1:] if "requirement" in line[:200]]
    assert installs
    assert text.count("--require-hashes") == 2  # what runs, and what builds
    assert "--constraint" not in text
    assert "--no-build-isolation" in text


def test_torch_is_the_exact_version_that_comes_as_a_cpu_build() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_every_kind_stands_in_the_guide_to_plugins() -> None:
    text = GUIDE.read_text()
    assert not [kind for kind in PACKAGES if f"`{kind}/`" not in text]


def test_make_lists_its_targets_and_ci_is_a_script() -> None:
    listed = subprocess.run(
        ["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    )
    words = listed.stdout.split()
    assert {"demo", "test", "test-all", "check", "bench"} <= set(words)
    assert os.access(ROOT / ".ci/run", os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)
    text = (ROOT / ".ci/run").read_text()
    assert re.search(
        r"^export (?:\S+ )*CI=true\b", text, re.MULTILINE
    )  # the long floods, and no skips


def test_the_wheel_holds_the_packages_their_data_and_nothing_else(tmp_path: Path) -> None:
    offline = importlib.util.find_spec("hatchling") is not None
    flags = ["--no-build-isolation"] if offline else []
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *flags, "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, timeout=170,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("mldebug_agent-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    expected = {
        path.relative_to(ROOT / package.rpartition("/")[0]).as_posix()
        for package in ROOTS
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in held if ".dist-info/" not in name} == expected
    assert {
        "mldebug/py.typed",
        "mldebug_training/py.typed",
        "mldebug/incidents/report/templates/report.html.j2",
    } <= held
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
