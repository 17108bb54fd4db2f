"""One version, told by several files; and the changelog has it."""

import re
import tomllib
from pathlib import Path

import pytest

from mldebug import DISTRIBUTION, __version__

ROOT = Path(__file__).parents[3]
INSTALLS_OTHER = re.compile(r"(?<!Not `)pip install (?:-\S+ )*['\"]?mldebug(?![\w.-])")
VERSIONS = {
    "deploy/README.md": r"mldebug_(\S+?)_amd64\.deb",
    "deploy/kubernetes/Dockerfile": r"mldebug:(\S+)",
    "deploy/kubernetes/chart/Chart.yaml": r'^(?:version|appVersion): "?([^"\s]+)',
    "deploy/kubernetes/examples/sidecar.yaml": r"image: mldebug:(\S+)",
    "deploy/kubernetes/manifests/agents.yaml": r"app.kubernetes.io/version: \"(.*)\"",
    "deploy/kubernetes/manifests/full.yaml": r"image: \"mldebug:(.*)\"",
}
SECTION = re.compile(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def sections() -> dict[str, str]:
    """The versions of the changelog, in their order, and their dates."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = SECTION.findall(text)
    assert len(found) == text.count("\n## ")
    return dict(found)


def released() -> list[str]:
    return [name for name in sections() if name != "Unreleased"]


def test_the_package_is_not_called_what_pypi_calls_another_program() -> None:
    """The files that install a wheel take the new name, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION != "mldebug"
    assert project["scripts"] == {"mldebug": "mldebug.cli.main:main"}
    wheel = f"{DISTRIBUTION.replace('-', '_')}-*.whl"
    for file in ("README.md", "deploy/debian/build-deb"):
        assert wheel in (ROOT / file).read_text(encoding="utf-8")


def test_no_page_says_to_install_that_other_program() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    found = {
        str(file.relative_to(ROOT))
        for file in files
        if INSTALLS_OTHER.search(file.read_text(encoding="utf-8"))
    }
    assert not found


def test_a_version_has_its_section_and_one_in_development_has_none_yet() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)
    version, development, _ = __version__.partition(".dev")
    assert ("Unreleased" in sections()) >= bool(development)
    assert (version in released()) != bool(development)


def test_sections_come_newest_first_each_with_its_date() -> None:
    result = sections()
    assert "Unreleased" not in list(result)[1:]
    assert not result.get("Unreleased")
    assert all(result[name] for name in released())
    assert released() == sorted(released(), key=lambda name: tuple(map(int, name.split("."))))[::-1]


@pytest.mark.parametrize("file", VERSIONS)
def test_files_that_tell_a_version_tell_the_newest_that_was_released(file: str) -> None:
    found = re.findall(VERSIONS[file], (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(found) == {released()[0]}
