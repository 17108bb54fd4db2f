"""Run pytest in parts, some of them at a time, each with a few folders of tests and in a process of its own.

A process that has collected all tests is 540 MiB large, and whatever a test forks from it costs 35 ms of CPU for page tables
alone; hundreds of tests fork. With a tenth of them it is 5 ms, and nothing is collected twice.

usage: in_parts.py WORKERS PYTEST-OPTION...    with 0 workers, or where an option names tests: one pytest
       in_parts.py --list                      the parts, one a line: its name and its folders
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
FOLDERS = ("docs", "system", "processes")  # beside those of tests/unit
FULL = 320_000  # bytes of a part's tests
NO_TESTS = 5  # pytest's exit code


class Part(NamedTuple):
    """Folders of tests that one pytest runs, and how many bytes they have."""

    folders: list[Path]
    size: int

    @property
    def name(self) -> str:
        """Its largest folder's."""
        return self.folders[0].name

    @property
    def paths(self) -> list[str]:
        """As a person would write them."""
        return [os.path.relpath(folder) for folder in self.folders]


def parts() -> list[Part]:
    """All folders of tests, the largest first; each is put where it still fits."""
    every = [TESTS / name for name in FOLDERS]
    every += [one for one in (TESTS / "unit").iterdir() if any(one.glob("test_*.py"))]
    sizes = {one: sum(file.stat().st_size for file in one.rglob("test_*.py")) for one in every}
    found: list[Part] = []
    for folder in sorted(every, key=lambda one: (-sizes[one], one.name)):
        room = [number for number, one in enumerate(found) if one.size + sizes[folder] <= FULL]
        if room:
            old = found[room[0]]
            found[room[0]] = Part([*old.folders, folder], old.size + sizes[folder])
        else:
            found.append(Part([folder], sizes[folder]))
    return found


def run(part: Part, options: Sequence[str]) -> tuple[Part, int, str]:
    """Exit code and output of its pytest."""
    argv = [sys.executable, "-m", "pytest", *part.paths, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)  # fmt: skip
    return part, done.returncode, done.stdout


def all_of(workers: int, options: Sequence[str]) -> Iterator[tuple[Part, int, str]]:
    """Each part as it ends; real jobs mostly wait, so they begin first."""
    waiting = sorted(parts(), key=lambda part: TESTS / "processes" not in part.folders)
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda part: run(part, options), waiting)


def names_tests(option: str) -> bool:
    """Whether this is the path of tests, perhaps with the name of one."""
    return not option.startswith("-") and Path(option.partition("::")[0]).exists()


def main() -> int:
    """Print a line for each part, and all that a red one has printed."""
    first, *options = sys.argv[1:]
    if first == "--list":
        print(*(" ".join([part.name, *part.paths]) for part in parts()), sep="\n")
        return 0
    if int(first) == 0 or any(map(names_tests, options)):
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *options])
    red = []
    for part, code, output in all_of(int(first), options):
        last = output.rstrip().rpartition("\n")[2].strip("= ")
        print(f"{' '.join(part.paths)}: {last}" if code in (0, NO_TESTS) else output, flush=True)
        if code not in (0, NO_TESTS):
            named = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            red += named or [f"pytest of {' '.join(part.paths)} ended with {code}"]
    print(*red, sep="\n", end="\n" * bool(red))
    return bool(red)


if __name__ == "__main__":
    sys.exit(main())
