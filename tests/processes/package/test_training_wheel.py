"""The wheel of the hook alone: built, installed where there is no agent, and used there."""

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mldebug
from unit.training.test_hook import STEP, TELL, interpreters, site

__all__ = ["site"]
pytestmark = [pytest.mark.scenario, pytest.mark.host, pytest.mark.timeout(400)]
REPOSITORY = Path(__file__).parents[3]
OLDEST = "3.9"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--wheel-dir", str(folder), str(REPOSITORY / "deploy/training-wheel")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=[OLDEST, f"3.{sys.version_info[1]}"])
def installed(
    wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A Python that has it, and nothing else."""
    if request.param not in interpreters():
        pytest.skip(f"there is no Python {request.param} here")
    folder = tmp_path_factory.mktemp("venv")
    argv = [interpreters()[request.param], "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(argv, check=True, timeout=100)
    python = folder / "bin/python"
    asking = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    place = subprocess.run(asking, check=True, capture_output=True, text=True, timeout=60).stdout
    with zipfile.ZipFile(wheel) as archive:  # as pip does; today's pip no longer knows Python 3.9
        archive.extractall(place.strip())
    return python


def run_in(argv: list[str], site: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(site), "RANK": "1", "WORLD_SIZE": "4", **more}
    return subprocess.run(
        argv, env=env, cwd=site, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_is_small_and_needs_nothing(wheel: Path) -> None:
    assert wheel.name == f"mldebug_training-{mldebug.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.9" in metadata
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "mldebug_training"
    }
    assert not [name for name in names if "__pycache__" in name]
    sources = {f"mldebug_training/{one.relative_to(REPOSITORY / 'agents/mldebug_training')}"
               for one in (REPOSITORY / "agents/mldebug_training").rglob("*.py")}  # fmt: skip
    assert sources <= set(names)


def test_it_takes_the_jobs_place_without_an_agent(installed: Path, site: Path) -> None:
    (site / "job.py").write_text(TELL + "\n".join(line[4:] for line in STEP.splitlines()))
    run = [str(installed), "-m", "mldebug_training", "--"]
    done = run_in([*run, str(installed), "job.py"], site, PYTHONPATH=str(site))
    assert (done.returncode, done.stderr) == (0, "")
    assert '"step": 5, "rank": 1, "size": 4' in done.stdout
    assert run_in([*run, "sh", "-c", "exit 7"], site).returncode == 7


def test_its_line_does_the_same_in_a_script(installed: Path, site: Path) -> None:
    (site / "job.py").write_text(TELL + "\n".join(line[4:] for line in STEP.splitlines()))
    python = shlex.quote(str(installed))
    for before in ("", str(site)):
        path = f"PYTHONPATH={before}; export PYTHONPATH; " if before else ""
        script = f'{path}eval "$({python} -m mldebug_training)"; exec {python} job.py'
        done = run_in(["sh", "-c", script], site)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert '"step": 5' in done.stdout


@pytest.mark.parametrize("words", [["--"], ["--", "/nowhere/at\x1ball"], ["--", ""], ["/tmp"]])
def test_a_job_that_cannot_be_started_is_one_sentence(
    installed: Path, site: Path, words: list[str]
) -> None:
    done = run_in([str(installed), "-m", "mldebug_training", *words], site)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: python -m mldebug_training" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr
