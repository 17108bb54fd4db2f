"""What is released: built from the tracked files, installed where there is no source tree, and used there."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import mldebug
from mldebug_agents.web.unix_http import UnixConnection
from shared.system.patience import PATIENCE

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.host,  # packages come from an index
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts something over the sources"),
]
REPOSITORY = Path(__file__).parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
ROOTS = {"mldebug": "", "mldebug_agents": "agents/", "mldebug_training": "agents/", "mldebug_exporters": "exporters/"}  # fmt: skip
BUILT = {
    f"mldebug_agent-{mldebug.__version__}.tar.gz",
    f"mldebug_agent-{mldebug.__version__}-py3-none-any.whl",
    f"mldebug_training-{mldebug.__version__}-py3-none-any.whl",
    f"mldebug_training_native-1.0.0-cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-linux_{os.uname().machine}.whl",
}
# Everything in a world of its own, in which neither the sources nor their virtual environment are to be seen; torch stays, aside.
WORLD = (
    *("unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--ipc", "--net"),
    *("bash", "-ec"),
    'mount --bind "$1" "$2"; mount -t tmpfs tmpfs "$3"; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; shift 3; "$@"; exit',
    "bash",
)
LOADS_ALL = """
import mldebug, mldebug_agents, mldebug_training, mldebug_exporters
from mldebug.core.errors import ToolError
from mldebug.core.plugins import PACKAGES, create, names
print([one.__file__ for one in (mldebug, mldebug_agents, mldebug_training, mldebug_exporters)])
made, without = 0, []
for kind in PACKAGES:
    for name in names(kind):
        try:
            made += create(kind, name) is not None
        except ToolError as error:
            without.append((name, error.way_out))
print(made)
print(without)
"""


def run(argv: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | more
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)


def good(argv: list[str], **more: str) -> str:
    """What a command that ends well prints."""
    done = run(argv, **more)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


# --- building --------------------------------------------------------------------------------------


def tracked() -> set[str]:
    """The files of the next commit: tracked, or new and not ignored."""
    git = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), "ls-files", "-z"]
    result = good([*git, "--cached", "--others", "--exclude-standard"])
    return {name for name in result.split("\0") if name and (REPOSITORY / name).exists()}


def build(into: Path, work: Path) -> dict[str, Path]:
    """A release, from a clean checkout that is gone afterwards; by file name."""
    source = work / f"source-of-{into.name}"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, source / name)
    argv = [str(source / "deploy/build-dist"), str(into)]
    good(argv, PYTHON=sys.executable, SOURCE_DATE_EPOCH="1795240241")
    shutil.rmtree(source)
    return {one.name: one for one in into.iterdir()}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all of it."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def release(work: Path) -> dict[str, Path]:
    """Its files by name."""
    return build(work / "dist", work)


def one(release: dict[str, Path], end: str) -> Path:
    return next(path for name, path in release.items() if name.startswith("mldebug_agent-") and name.endswith(end))  # fmt: skip


def test_a_release_is_four_files_and_the_same_bytes_again(
    release: dict[str, Path], work: Path
) -> None:
    again = build(work / "again", work)
    assert set(release) == set(again) == BUILT
    assert {name: digest(path) for name, path in release.items()} == {
        name: digest(path) for name, path in again.items()
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_sdist_is_the_checkout(release: dict[str, Path]) -> None:
    with tarfile.open(one(release, ".tar.gz")) as archive:
        held = {name.name.partition("/")[2] for name in archive if not name.isdir()}
    assert held - {"PKG-INFO"} == tracked()


def test_the_wheel_holds_all_data_of_the_packages(release: dict[str, Path]) -> None:
    files = tracked()
    wanted = {
        name.removeprefix(root)
        for package, root in ROOTS.items()
        for name in files
        if name.startswith(f"{root}{package}/")
    }
    with zipfile.ZipFile(one(release, ".whl")) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert len([name for name in held if not name.endswith(".py")]) > 20


def test_the_wheel_says_what_pip_and_people_need(release: dict[str, Path]) -> None:
    with zipfile.ZipFile(one(release, ".whl")) as archive:
        folder = f"mldebug_agent-{mldebug.__version__}.dist-info"
        content = archive.read(f"{folder}/METADATA")
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
        licence = archive.read(f"{folder}/licenses/LICENSE")
    data = Metadata.from_email(content, validate=True)  # as strictly as an index does
    assert (data.name, str(data.version)) == (mldebug.DISTRIBUTION, mldebug.__version__)
    assert str(data.requires_python) == PROJECT["requires-python"]
    assert (data.license_expression, data.license_files) == ("Apache-2.0", ["LICENSE"])
    assert licence == (REPOSITORY / "LICENSE").read_bytes()
    assert set(data.provides_extra or ()) == set(PROJECT["optional-dependencies"])
    wanted = {plain(Requirement(line)) for line in PROJECT["dependencies"]}
    assert {plain(need) for need in data.requires_dist or () if need.marker is None} == wanted
    assert data.description_content_type == "text/markdown"
    assert data.description == (REPOSITORY / "README.md").read_text()
    assert scripts == "[console_scripts]\nmldebug = mldebug.cli.main:main\n"


def plain(need: Requirement) -> tuple[str, str]:
    return need.name.lower(), str(need.specifier)


# --- using -----------------------------------------------------------------------------------------


class Installed:
    """A virtual environment with the wheel, what it needs, and nothing else, in a world without its sources."""

    def __init__(self, work: Path) -> None:
        self.folder = work / "venv"
        self.home = work / "home"
        self.torch = work / "torch"
        for folder in (self.home, self.torch):
            folder.mkdir()
        self.world = [*WORLD, str(Path(str(distribution("torch").locate_file("")))), str(self.torch), str(REPOSITORY)]  # fmt: skip
        good([sys.executable, "-m", "venv", "--without-pip", str(self.folder)])
        (self.site,) = self.folder.glob("lib/python3.*/site-packages")

    def install(self, *wheels: Path) -> None:
        """With the pinned versions of what they need."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin/python"), "install"]
        pins = ["--constraint", str(REPOSITORY / "constraints.txt")]
        index = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        good([*pip, "--quiet", "--disable-pip-version-check", *pins, *map(str, wheels)], **index)

    def argv(self, program: str, *words: str) -> list[str]:
        """A program of it, in an empty folder."""
        enter = ["env", "-C", str(self.home), str(self.folder / "bin" / program)]
        return [*self.world, *enter, *words]

    def output_of(self, program: str, *words: str, **more: str) -> str:
        """What a program of it prints; it has to end well."""
        return good(self.argv(program, *words), HOME=str(self.home), TMPDIR=str(self.home), **more)

    @contextmanager
    def trains(self) -> Iterator[None]:
        """For now it finds the torch of the tests, which would take minutes to install, and what torch needs."""
        line = self.site / "torch.pth"
        line.write_text(f"{self.torch}\n")
        yield
        line.unlink()


@pytest.fixture(scope="module")
def installed(release: dict[str, Path], work: Path) -> Installed:
    """The wheel that was made of the sdist, and the tracer's writer."""
    made = Installed(work)
    (native,) = (path for name, path in release.items() if "native" in name)
    made.install(one(release, ".whl"), native)
    return made


def test_the_sources_are_gone(installed: Installed) -> None:
    done = run([*installed.world, "ls", "-A", str(REPOSITORY)])
    assert (done.returncode, done.stdout) == (0, "")


def test_every_plugin_is_made_of_the_installed_files(installed: Installed) -> None:
    files, made, without = installed.output_of("python", "-c", LOADS_ALL).splitlines()
    assert files == str([f"{installed.site}/{package}/__init__.py" for package in ROOTS])
    assert int(made) > 100
    way_out = "pip install 'mldebug-agent[fleet]'"
    assert without == str([("postgresql", way_out), ("nats", way_out)]), (
        "of packages that are not installed with mldebug"
    )


def test_the_commands_work(installed: Installed) -> None:
    assert installed.output_of("mldebug", "--version").startswith(f"mldebug {mldebug.__version__} ")
    checks = json.loads(installed.output_of("mldebug", "doctor", "--json"))["checks"]
    (spy,) = (check for check in checks if check["name"] == "py-spy")
    assert f"at {installed.folder}/bin/py-spy" in spy["meaning"]
    shown = installed.output_of("mldebug", "check-config", "--print")
    (installed.home / "c.yaml").write_text(shown)
    assert installed.output_of("mldebug", "check-config", "c.yaml") == "c.yaml is good\n"
    assert installed.output_of("mldebug", "dump", "--h", _MLDEBUG_COMPLETE="zsh").count("--h") >= 3
    assert "complete -o nosort -F _mldebug" in installed.output_of("mldebug", "completion", "bash")
    built = installed.output_of("python", "-c", "import mldebug_training_native as it; print(it.__file__)")  # fmt: skip
    assert built.startswith(str(installed.site))


def test_the_agent_serves_its_pages(installed: Installed) -> None:
    state = installed.home / "state"
    (installed.home / "agent.yaml").write_text(f"agent: {{state_dir: {state}, listen: ''}}\n")
    argv = installed.argv("mldebug", "agent", "--config", "agent.yaml")
    with subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE) as agent:
        try:
            by_name = {path: served(state, path) for path in ("/runs", "/look.css", "/look.js", "/metrics")}  # fmt: skip
        finally:
            agent.kill()  # and with it all of its world
    assert "<html" in by_name["/runs"]
    assert "{" in by_name["/look.css"]
    assert len(by_name["/look.js"]) > 1000
    assert f'version="{mldebug.__version__}"' in by_name["/metrics"]


def served(state: Path, path: str, seconds: float = 60.0) -> str:
    """What the agent serves there, once it has looked around."""
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        link = UnixConnection(state)
        try:
            link.request("GET", path)
            answer = link.getresponse()
            if answer.status == 200:
                return answer.read().decode()
        except OSError:
            pass
        finally:
            link.close()
        time.sleep(0.1)
    raise AssertionError(f"no answer for {path}")


def test_the_demo_finds_the_culprit_of_a_real_hang(installed: Installed) -> None:
    with installed.trains():
        where = "import mldebug, torch; print(mldebug.__file__, torch.__file__)"
        assert installed.output_of("python", "-c", where).split() == [
            f"{installed.site}/mldebug/__init__.py", f"{installed.torch}/torch/__init__.py",
        ]  # fmt: skip
        result = installed.output_of("mldebug", "demo", "--html", "page.html")
    assert "\nCulprit\n> rank 2 " in result
    page = (installed.home / "page.html").read_text()
    assert "<style>" in page
    assert "rank 2" in page
