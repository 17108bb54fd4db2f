"""Every path of tests/, deploy/ and docs/ that the CI run, the Makefile, a page or a test names is there."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CI = (ROOT / ".ci/run").read_text()
MOST = 15  # entries of a folder of tests/ that a reader looks for something in
# paths as people write them: `tests/bench/soak.py`, `../deploy/README.md`; not the begin of a name, and not one with a placeholder
PATH = re.compile(
    r"(?<![\w./{}$<-])(?:\.\./)*((?:tests|deploy|docs)/[\w./-]*\w)(?![\w*{}$<>…\[-]|/[*{$<])"
)
# of another repository, a kind and no file, or an example of a test
ELSEWHERE = (
    "tests/attribution",
    "tests/fixtures/field/KIND",
    "tests/bench/none.py",
    "deploy/gone.yaml",
    "docs/lost.md",
)
OLD = {"CHANGELOG.md"}  # what was there then


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that match these patterns of git."""
    words = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in found.stdout.splitlines() if (ROOT / line).is_file()]


def missing(text: str) -> list[str]:
    """The paths that a text names and that are not there."""
    found = {path for path in PATH.findall(text) if not path.startswith(ELSEWHERE)}
    return sorted(path for path in found if not (ROOT / path).exists())


def listed(name: str) -> list[str]:
    """The words of one of the lists of .ci/run."""
    found = re.search(rf"^{name}=\(([^)]*)\)$", CI, re.MULTILINE)
    assert found, name
    return found[1].split()


def test_a_path_that_is_not_there_is_found() -> None:
    text = "as tests/bench/soak.py does, [and](../tests/bench/none.py), `tests/unit/<subject>`, tests/unit/*"
    assert missing(text.replace("none.py", "nil.py")) == ["tests/bench/" + "nil.py"]


@pytest.mark.parametrize(
    "file",
    [ROOT / ".ci/run", ROOT / "Makefile", ROOT / "pyproject.toml", *tracked("*.md", "deploy/", "tests/*.py")],
    ids=lambda file: str(file.relative_to(ROOT)),
)  # fmt: skip
def test_what_is_named_is_there(file: Path) -> None:
    if file.name in OLD or "fixtures" in file.parts:
        return
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    assert missing(text) == []


def test_the_ci_run_finds_the_files_that_it_names() -> None:
    there = {str(file.relative_to(ROOT / "tests")) for file in tracked("tests/*.py")}
    for name in (*listed("NETWORKS"), *listed("SLURM"), *listed("BOOTED")):
        assert f"system/test_{name}.py" in there
    for path in (*listed("QUIET"), *listed("QUIET_HOST")):
        assert f"{path}.py" in there
    for name in listed("LONGEST"):
        found = [path for path in there if path.endswith(f"/test_{name}.py") and path.startswith("processes/")]  # fmt: skip
        assert len(found) == 1, name


def test_parts_of_the_ci_run_have_names_of_their_own() -> None:
    # a part is named after its file, without the folder
    files = tracked("tests/processes/**/test_*.py", "tests/system/test_*.py")
    assert len(files) > 60
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    assert twice == []


@pytest.mark.parametrize("folder", ["tests", "tests/processes", "tests/shared"])
def test_the_entries_of_tests_are_few(folder: str) -> None:
    entries = {file.relative_to(ROOT / folder).parts[0] for file in tracked(f"{folder}/*")}
    assert len(entries) <= MOST, sorted(entries)
