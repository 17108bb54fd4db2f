"""The commands of docs/quick-start.md, as they stand there, typed into a bare Debian.

    PYTHONPATH=tests python3 tests/system/quick_start.py

prints what they say and how long each part took.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shared.system.patience import PATIENCE
from system.machine import NAME, base_files, end_container

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/quick-start.md"
BARE = ""  # packages beside what debootstrap calls minbase
PROMETHEUS = "http://127.0.0.1:9099"
HOME = "/root/mldebug"
OUTSIDE = "/opt/outside"
SETTINGS = re.compile(r"(PIP_|SSL_CERT_)[A-Z_]+")
PART_SECONDS = 420.0 * PATIENCE  # after which the commands of a part are taken to hang

_PART = re.compile(
    r"^## (?P<title>[^\n]+)$|^```sh\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Part(msgspec.Struct, frozen=True):
    """The commands below one heading."""

    title: str
    commands: str


def parts(page: str) -> list[Part]:
    """What a reader types, by heading. Blocks of another language than `sh` show what is printed."""
    found: list[Part] = []
    title = ""
    for match in _PART.finditer(page):
        title = match["title"] or title
        if match["commands"]:
            found.append(Part(title=title, commands=match["commands"]))
    return found


class Shell:
    """A shell in a bare Debian, in whose home the checkout lies. It ends at the first command that fails."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.printed: list[str] = []
        self._end = f"part-has-ended-{os.getpid()}"
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == self._end:
                self._ended.set()
            else:
                self.printed.append(line)

    def close(self) -> None:
        """Forget a shell that has ended."""
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def type(self, commands: str, seconds: float = PART_SECONDS) -> float:
        """Type the commands; return how long they took. Fails where one of them does, or does not end."""
        assert self._process.stdin is not None
        began, self._ended = time.monotonic(), threading.Event()
        self._process.stdin.write(f"{commands}\necho {self._end}\n")
        self._process.stdin.flush()
        while not self._ended.wait(0.05):
            over = self._process.poll() is not None
            late = time.monotonic() - began > seconds
            assert not over, f"the shell ended:\n{commands}\n{''.join(self.printed[-60:])}"
            assert not late, (
                f"no end after {seconds:g} s:\n{commands}\n{''.join(self.printed[-60:])}"
            )
        return time.monotonic() - began


@contextmanager
def bare_debian(base: Path) -> Iterator[Shell]:
    """A shell in a copy of `base` with this checkout and the host's network. Nothing of it is left at the end."""
    with tempfile.TemporaryDirectory(dir=base.parent) as folder:
        root = Path(folder) / "root"
        subprocess.run(["cp", "--archive", "--reflink=auto", str(base), str(root)], check=True)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost {NAME}\n")  # as the installer does
        copy_checkout(root / HOME.lstrip("/"))
        process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", f"--machine={NAME}", f"--hostname={NAME}", "--register=no",
             "--keep-unit", "--as-pid2", "--pipe", "--resolv-conf=copy-host", f"--chdir={HOME}", *_settings(), "/bin/bash", "-eu"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        shell = Shell(process)
        try:
            yield shell
        finally:
            end_container(process)
            shell.close()


def copy_checkout(place: Path) -> None:
    """What git knows of, as a clone would have it, with what is not committed yet."""
    place.mkdir(parents=True)
    git = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY)]
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / name)


def _settings() -> Iterator[str]:
    """How this machine reaches a package index: pip's settings, the files that they name (elsewhere inside), and apt's."""
    yield "--bind-ro=/etc/apt/apt.conf.d"
    for name, value in os.environ.items():
        if not SETTINGS.fullmatch(name):
            continue
        if value.startswith("/") and Path(value).exists():
            yield f"--bind-ro={value}:{OUTSIDE}{value}"
            value = OUTSIDE + value
        yield f"--setenv={name}={value}"


def query_labels(query: str) -> list[dict[str, str]]:
    """The labels of what Prometheus has for a query now."""
    words = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{PROMETHEUS}/api/v1/query?{words}", timeout=60) as answer:
        document = json.load(answer)
    return [one["metric"] for one in document["data"]["result"]]


def main() -> None:
    """Type all of it and print the times."""
    with base_files(packages=BARE) as base, bare_debian(base) as shell:
        for part in parts(PAGE.read_text()):
            print(f"{shell.type(part.commands):7.1f} s  {part.title}", flush=True)
        sys.stdout.writelines(shell.printed)


if __name__ == "__main__":
    main()
