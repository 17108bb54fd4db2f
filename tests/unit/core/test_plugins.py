"""The registry finds a plugin as a file or as a package; shared code and folders of a kind are none; it imports only what is asked for."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from mldebug.core import plugins
from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions, create, load, names, options_of, summary

PLAIN = '"""Plain: it has no settings."""\n\n\ndef create(options):\n    return options\n'
SHARED = '"""Shared code."""\n\nWORD = "shared"\n'
PACKAGE = (
    '"""Several files."""\n\nimport msgspec\n\nfrom shapes.package._parts import WORD\n\n\n'
    "class Options(msgspec.Struct):\n    size: int = 3\n\n\n"
    "def create(options):\n    return WORD * options.size\n"
)
BROKEN = '"""Broken: it cannot be imported."""\n\nraise RuntimeError("imported")\n'
FILES = {
    "__init__.py": "",
    "plain.py": PLAIN,
    "broken.py": BROKEN,
    "_shared.py": SHARED,
    "package/__init__.py": PACKAGE,
    "package/_parts.py": SHARED,
    "more/__init__.py": "",
    "more/deeper.py": PLAIN,
}


@pytest.fixture(autouse=True)
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind `shapes`, with the folders `shapes` and, inside it, `more`."""
    for name, text in FILES.items():
        file = tmp_path / "shapes" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(plugins.PACKAGES, "shapes", ("shapes", "shapes.more"))
    monkeypatch.setattr(plugins, "_FOLDERS", plugins._FOLDERS | {"shapes", "shapes.more"})
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "shapes"]:
        del sys.modules[name]


def test_files_and_packages_of_all_its_folders_are_its_plugins() -> None:
    assert names("shapes") == ["broken", "deeper", "package", "plain"]
    assert not [name for name in sys.modules if name.startswith("shapes.p")]


def test_a_package_is_one_plugin_and_its_files_are_none() -> None:
    module: ModuleType = load("shapes", "package")
    assert options_of(module).__name__ == "Options"
    assert create("shapes", "package") == "sharedsharedshared"
    assert create("shapes", "package", msgspec.convert({"size": 1}, options_of(module))) == "shared"


def test_a_plugin_without_settings_takes_none() -> None:
    assert isinstance(create("shapes", "plain"), NoOptions)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"size": 1}, options_of(load("shapes", "plain")))


def test_a_plugin_says_what_it_is_without_being_imported() -> None:
    assert summary("shapes", "broken") == "Broken: it cannot be imported."


@pytest.mark.parametrize("name", ["_shared", "more", "_parts", "none"])
def test_what_is_no_plugin_is_refused_with_the_names_that_there_are(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        load("shapes", name)
    assert "broken, deeper, package, plain" in str(refused.value) + refused.value.way_out
