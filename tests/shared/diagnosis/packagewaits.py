"""Reads the sources of installed frameworks, and says which rows of `package_waits` are not in them, though newer versions should have them.

    python tests/shared/diagnosis/packagewaits.py FOLDER …

A folder is one of installed or unpacked packages (`pip download --no-deps`, unzipped); without one, this Python's own.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from mldebug.diagnosis.classify.tables.package_waits import PACKAGE_WAITS, PackageWait


def missing(wait: PackageWait, folder: Path) -> list[str]:
    """The functions of a row that its file does not define; the file itself where it is not there.

    Of a row that newer versions lack, nothing: they are not told from those that should have it.
    """
    file = folder / wait.file
    if wait.gone:
        return []
    if not file.exists():
        return [wait.file]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
    return [name for name in wait.functions if name not in defined]


def rows_of(folder: Path) -> Iterator[PackageWait]:
    """The rows of packages that are in this folder."""
    for wait in PACKAGE_WAITS:
        if (folder / wait.file.partition("/")[0]).is_dir():
            yield wait


def main(folders: list[str]) -> int:
    """Print what is missing; 1 where anything is."""
    found = 0
    for folder in map(Path, folders or [sysconfig.get_path("purelib")]):
        for wait in rows_of(folder):
            if names := missing(wait, folder):
                found = 1
                print(f"{folder}: {wait.package} ({wait.read}), {wait.file}: {', '.join(names)}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
