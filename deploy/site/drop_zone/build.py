"""Builds the drop zone, a page that judges dropped dumps in the browser: Pyodide of npm, msgspec for it of PyPI, and pure packages of this environment.

python deploy/site/drop_zone/build.py FOLDER      FOLDER receives the page; needs npm, pip and a network
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PYODIDE, PYODIDE_SHA256 = (
    "314.0.7",
    "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0",
)
MSGSPEC, MSGSPEC_SHA256 = (
    "0.22.0",
    "a66b1766311e42371e509c996c3933b161c7ae0eabdf361af5316dec197e1022",
)
PLATFORM = (
    "--platform",
    "pyemscripten_2026_0_wasm32",
    "--python-version",
    "3.14",
    "--implementation",
    "cp",
)
RUNTIME = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
PURE = ("mldebug", "click", "rich", "jinja2", "markupsafe", "yaml", "ClusterShell")
COMPILED = {".so", ".pyc", ".pyd", ".pyi", ".pyx", ".c"}
DATE = (2020, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def build(folder: Path) -> int:
    """Write the page into a folder, and return its size in bytes. Raises RuntimeError for a download that is not the one that was looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        subprocess.run(
            [_npm(), "pack", "--silent", f"pyodide@{PYODIDE}"],
            cwd=work,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with tarfile.open(_checked(next(work.glob("pyodide-*.tgz")), PYODIDE_SHA256)) as archive:
            archive.extractall(work, filter="data")
        for one in RUNTIME:
            shutil.copyfile(work / "package" / one, folder / one)
        pip = (
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary",
            ":all:",
        )
        subprocess.run([*pip, *PLATFORM, "--dest", str(work), f"msgspec=={MSGSPEC}"], check=True)
        shutil.copyfile(
            _checked(next(work.glob("msgspec-*.whl")), MSGSPEC_SHA256), folder / "msgspec.zip"
        )
    _pack(folder / "packages.zip")
    for one in ("index.html", "drop.css", "drop.js"):
        shutil.copyfile(HERE / one, folder / one)
    return sum(file.stat().st_size for file in folder.iterdir())


def _npm() -> str:
    found = shutil.which("npm")
    if found is None:
        raise RuntimeError("npm is missing: Pyodide comes from there")
    return found


def _checked(file: Path, digest: str) -> Path:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != digest:
        raise RuntimeError(f"{file.name} has another content than expected: {found}")
    return file


def _pack(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in _sources():
            archive.writestr(zipfile.ZipInfo(name, DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)


def _sources() -> Iterator[tuple[str, Path]]:
    """The files of all pure packages, by their names in site-packages."""
    yield "judge.py", HERE / "judge.py"
    for package in PURE:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise RuntimeError(f"the package {package} is not installed here")
        folder = Path(found.origin).parent
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.suffix not in COMPILED:
                yield f"{package}/{file.relative_to(folder)}", file


if __name__ == "__main__":
    made = Path(sys.argv[1])
    print(
        f"{made}: {build(made) / 1e6:.1f} MB; to look at it: python3 -m http.server --directory {made}"
    )
