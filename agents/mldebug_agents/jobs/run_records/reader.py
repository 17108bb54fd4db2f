"""Reads with what a run was started: environment, packages beside PyTorch, and which commit and script it runs.

A job chooses these paths and texts: all is opened by the reader child, with the rights of the rank's user and a deadline, once for a
run. For one worker thread only.
"""

import errno
import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from posixpath import dirname, isabs, join, normpath

import msgspec

from mldebug.core.model import Job, RankIdentity
from mldebug.core.redact import clean
from mldebug.jobs.run_records.recorded_settings import (
    MOST_PACKAGES,
    explaining,
    package_versions,
    python_version,
    recorded_arguments,
    recorded_environment,
)
from mldebug_agents.jobs.ranks.libraries import InstalledSoftware, Libraries
from mldebug_agents.system import procfs
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

TIMEOUT = 2.0  # seconds for one path
MOST_ENVIRONMENT, MOST_COMMAND = 1 << 20, 256 << 10  # bytes
MOST_ENTRIES = 8000  # of site-packages
MOST_SCRIPT = 1 << 20
MOST_GIT, MOST_REFS = 64 << 10, 4 << 20
PARENTS = 4  # folders above the working directory in which a repository is looked for
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_LINKED = re.compile(r"gitdir: ([^\n]{1,1000})")
_REF = re.compile(r"ref: (refs/[\w./-]{1,200})")


class RecordOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The request to read with what this job was started. `libraries`: the loaded ones of its lowest rank."""

    job: Job
    libraries: Libraries = Libraries()


class StartedWith(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was started: command line, variables, packages, code and machine, read of its lowest rank on this node. `gaps`: what could not
    be read; fields as in `RunRecord`."""

    run: str
    arguments: tuple[str, ...] = ()
    directory: str = ""
    environment: dict[str, str] = {}
    packages: dict[str, str] = {}
    code: dict[str, str] = {}
    machine: dict[str, str] = {}
    gaps: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()


class RunRecordReader:
    """Reads records. There is one per agent."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host, self._reader = host, reader

    def look(self, order: RecordOrder) -> StartedWith:
        """Read what there is of one run. What cannot be read is empty, with the reason in `gaps`."""
        rank = min(order.job.ranks, key=lambda one: one.rank)
        gaps: list[str] = []
        partial: list[str] = []
        directory = self._host.link(rank.pid, "cwd")
        found = StartedWith(
            run=order.job.id,
            arguments=self._arguments(rank, gaps, partial),
            directory=clean(directory, 300),
            environment=self._environment(rank, gaps, partial),
            packages=self._packages(rank, order.libraries, gaps, partial),
            code=self._code(rank, directory, gaps),
            machine={
                "kernel": platform.release(),
                "cores": str(os.cpu_count() or 0),
                "architecture": platform.machine(),
            },
        )
        if self._is_another(rank):
            return StartedWith(run=order.job.id, gaps=("its processes ended before they were read",))  # fmt: skip
        return msgspec.structs.replace(found, gaps=tuple(gaps), partial=tuple(partial))

    def _is_another(self, rank: RankIdentity) -> bool:
        """Whether the pid is by now another process than this rank."""
        stat = self._host.brief(rank.pid)
        return stat is None or stat.start_ticks != rank.start_ticks

    def _arguments(
        self, rank: RankIdentity, gaps: list[str], partial: list[str]
    ) -> tuple[str, ...]:
        """The whole command line: what is known of a rank has its first words only, each cut short."""
        data = self._kernel_file(rank, "cmdline", MOST_COMMAND)
        if isinstance(data, Unreadable):
            gaps.append(f"arguments: {data.reason}")
            return ()
        words = procfs.parse_cmdline(data)
        if len(words) < len(rank.argv):  # it has given itself a title since
            partial.append("arguments")
            return rank.argv
        found = recorded_arguments(words)
        if len(found) < len(words) or len(data) >= MOST_COMMAND:
            partial.append("arguments")
        return found

    def _environment(self, rank: RankIdentity, gaps: list[str], partial: list[str]) -> dict[str, str]:  # fmt: skip
        data = self._kernel_file(rank, "environ", MOST_ENVIRONMENT)
        if isinstance(data, Unreadable):
            gaps.append(f"environment: {data.reason}")
            return {}
        variables = procfs.parse_environ(data)
        found = recorded_environment(variables)
        if len(found) < len(explaining(variables)) or len(data) >= MOST_ENVIRONMENT:
            partial.append("environment")
        return found

    def _kernel_file(self, rank: RankIdentity, name: str, most: int) -> bytes | Unreadable:
        path = f"{self._host.proc}/{rank.pid}/{name}"
        return self._reader.read_many([path], max_bytes=most, timeout=TIMEOUT)[path]

    def _packages(
        self, rank: RankIdentity, loaded: Libraries, gaps: list[str], partial: list[str]
    ) -> dict[str, str]:
        if not loaded.torch:
            gaps.append("packages: PyTorch is not loaded, so it is not known where they lie")
            return {}
        folder = dirname(loaded.torch)
        root = self._host.root_of(rank.pid)
        listing = self._reader.list_folder(
            f"{root}{folder}", rights=self._rights(rank), depth=1, most=MOST_ENTRIES, timeout=TIMEOUT
        )  # fmt: skip
        if isinstance(listing, Unreadable):
            gaps.append(f"packages: {listing.reason}")
            return {}
        found = package_versions(entry.path for entry in listing.entries)
        if listing.left or len(found) >= MOST_PACKAGES:
            partial.append("packages")
        loaded_here = InstalledSoftware(self._host, self._reader).of("", rank.pid, loaded)
        own = {
            "python": python_version(folder),
            "torch": loaded_here.torch,
            "nccl": loaded_here.nccl,
        }
        return dict(sorted((found | {name: one for name, one in own.items() if one}).items()))

    def _code(self, rank: RankIdentity, directory: str, gaps: list[str]) -> dict[str, str]:
        if not isabs(directory):
            gaps.append("code: its working directory cannot be read")
            return {}
        found = {}
        if commit := self._commit(rank, directory):
            found["commit"] = commit
        if script := self._script(rank, directory):
            found["script"] = script
        return found

    def _script(self, rank: RankIdentity, directory: str) -> str:
        """The first 12 digits of the SHA-256 of the script that Python runs; "" for a module, or where it cannot be read."""
        path = next((word for word in rank.argv[1:] if word.endswith(".py")), "")
        data = self._read(rank, normpath(join(directory, path)), MOST_SCRIPT) if path else None
        return "" if data is None else f"sha256 {hashlib.sha256(data).hexdigest()[:12]}"

    def _commit(self, rank: RankIdentity, directory: str) -> str:
        """The commit that is checked out where the job works, or in a folder above it; "" where there is none."""
        for folder in _upwards(directory):
            place = f"{folder}/.git"
            head = self._try(rank, f"{place}/HEAD")
            if _is_file(head):  # of a worktree or submodule: it says where the rest lies
                found = _LINKED.fullmatch((self._text(rank, place) or "").strip())
                place = normpath(join(folder, found[1])) if found else place
                head = self._try(rank, f"{place}/HEAD")
            elif isinstance(head, Unreadable) and head.errno == errno.ENOENT:
                continue
            if isinstance(head, Unreadable):
                return ""  # it is under version control, but what is above it is other code
            return self._named(rank, place, head.decode(errors="replace").strip())[:12]
        return ""

    def _named(self, rank: RankIdentity, place: str, head: str) -> str:
        """The commit that the text of HEAD names. `place`: the folder in which HEAD lies."""
        if _COMMIT.fullmatch(head):
            return head
        found = _REF.fullmatch(head)
        if found is None or ".." in found[1]:
            return ""
        text = (self._text(rank, f"{place}/{found[1]}") or "").strip()
        if _COMMIT.fullmatch(text):
            return text
        common = normpath(join(place, (self._text(rank, f"{place}/commondir") or "").strip()))
        text = (self._text(rank, f"{common}/{found[1]}") or "").strip()
        if _COMMIT.fullmatch(text):
            return text
        packed = self._text(rank, f"{common}/packed-refs", MOST_REFS) or ""
        return next((line.split(" ")[0] for line in packed.splitlines() if line.endswith(f" {found[1]}")), "")  # fmt: skip

    def _text(self, rank: RankIdentity, path: str, most: int = MOST_GIT) -> str | None:
        data = self._read(rank, path, most)
        return None if data is None else data.decode(errors="replace")

    def _read(self, rank: RankIdentity, path: str, most: int) -> bytes | None:
        """None where it is missing, too large or closed to the rank's user: none of that is worth a word here."""
        data = self._try(rank, path, most)
        return None if isinstance(data, Unreadable) else data

    def _try(self, rank: RankIdentity, path: str, most: int = MOST_GIT) -> bytes | Unreadable:
        root = self._host.root_of(rank.pid)
        return self._reader.read_file(f"{root}{path}", rights=self._rights(rank), max_bytes=most, timeout=TIMEOUT)  # fmt: skip

    def _rights(self, rank: RankIdentity) -> Rights:
        return self._host.rights.of(rank)


def _is_file(head: bytes | Unreadable) -> bool:
    """Whether `.git` is a file, by the answer for `.git/HEAD`."""
    return isinstance(head, Unreadable) and head.errno == errno.ENOTDIR


def _upwards(folder: str) -> Iterator[str]:
    for _ in range(PARENTS):
        if folder in ("/", ""):
            return
        yield folder
        folder = dirname(folder)


def machine_facts(gpus: Mapping[str, int], driver: str) -> dict[str, str]:
    """GPUs and driver of a node as facts of a record. `gpus`: how many of each model."""
    found = {"GPUs": ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items()))}
    return {name: value for name, value in (found | {"driver": driver}).items() if value}
