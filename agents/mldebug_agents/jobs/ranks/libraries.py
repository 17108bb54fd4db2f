"""Which PyTorch and NCCL a process has loaded: paths from /proc/PID/maps, versions from the files beside the libraries.

Nothing of a job is imported or executed. A job chooses these paths and texts, so files are opened
through the reader child only, with a deadline of `TIMEOUT` seconds; what does not answer stays
unknown. Each installation is read once for a job.
"""

import errno
import re
import threading
from collections.abc import Collection, Mapping
from posixpath import basename, dirname

import msgspec

from mldebug.capture.flight_recorder.access import NAMES
from mldebug.core.redact import clean
from mldebug.jobs.known_issues.model import Software
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import FilePiece, Reader, Unreadable

MAX_PATH = 1024
MAX_VALUE = 4096  # characters of a setting that tells of the Flight Recorder: some are paths
_DELETED = " (deleted)"
_TORCH = re.compile(
    rb"^\S+ \S{4} \S+ \S+ \d+ +(/[^\n]{1,1000}/torch)/(?:lib/libtorch[a-z_]{0,16}\.so|_C\.[\w.-]{1,60}\.so)(?: \(deleted\))?$",
    re.MULTILINE,
)
_NCCL = re.compile(
    rb"^\S+ \S{4} \S+ \S+ \d+ +(/[^\n]{1,1000}/libnccl\.so[\d.]{0,16}(?: \(deleted\))?)$",
    re.MULTILINE,
)
_NUMBERED = re.compile(r"libnccl\.so\.(\d{1,3}\.\d{1,3}\.\d{1,3})")
_VERSION_LINE = re.compile(r"^__version__(?: {0,2}: {0,2}str)? {0,4}= {0,4}['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE)  # fmt: skip
_HIP = re.compile(r"^hip\b[^=\n]{0,40}= {0,4}['\"]\d", re.MULTILINE)
_DEFINED = re.compile(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d{1,4})\s*$", re.MULTILINE)
MAX_VERSION_FILE = 64 << 10  # PyTorch's has some hundred bytes
MAX_HEADER = 8 << 10  # bytes of nccl.h: the version stands at its top
MAX_READS = 8  # different places of one job
TIMEOUT = 2.0  # seconds for one path: the state of a port is asked from its card


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PyTorch and NCCL as the process sees them; "" where a library is not loaded, or not known."""

    torch: str = ""  # the folder of the package
    nccl: str = ""  # the file


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The libraries and settings of one rank's process, as read when the rank was found."""

    libraries: Libraries = Libraries()
    settings: Mapping[str, str] = {}  # of the allow-list for known issues
    recorder: Mapping[
        str, str
    ] = {}  # what decides how its Flight Recorder can be had, as it stands
    nccl_file: str = ""  # NCCL_DEBUG_FILE as it stands; "": NCCL writes to the output


def recorder_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that decide how a Flight Recorder can be read.

    They come from the job and are not cleaned.
    """
    return {
        name: environ[name] for name in NAMES & environ.keys() if len(environ[name]) < MAX_VALUE
    }


def libraries(maps: bytes) -> Libraries:
    """The paths of PyTorch and NCCL in the text of /proc/PID/maps.

    The path of PyTorch is "" where its file was removed since it was loaded.
    """
    torch, nccl = _TORCH.search(maps), _NCCL.search(maps)
    file = _path(nccl[1]) if nccl else ""
    removed = torch is not None and torch[0].endswith(_DELETED.encode())
    return Libraries(torch=_path(torch[1]) if torch and not removed else "", nccl=file)


def _path(found: bytes) -> str:
    path = found.decode(errors="replace")
    usable = len(path) <= MAX_PATH and "\ufffd" not in path and "\\" not in path
    return path if usable and not path.endswith(_DELETED) else ""


def version_file(torch: str) -> str:
    """The path of the file that names the version of the PyTorch in this folder."""
    return f"{torch}/version.py"


def header_file(nccl: str) -> str:
    """The path of the header that names the version of this NCCL library, as in a pip package:
    `…/nccl/lib/libnccl.so.2` -> `…/nccl/include/nccl.h`.
    """
    return f"{dirname(dirname(nccl))}/include/nccl.h"


def numbered(nccl: str) -> str:
    """The NCCL version in the file name (`libnccl.so.2.21.5`); "" where the name has none."""
    found = _NUMBERED.fullmatch(basename(nccl))
    return found[1] if found else ""


def software(version_text: str, nccl: str) -> Software:
    """The versions of PyTorch and NCCL. `version_text`: the text of torch/version.py; `nccl`: NCCL's version."""
    version = _VERSION_LINE.search(version_text)
    rocm = _HIP.search(version_text) is not None
    return Software(torch=clean(version[1], 80) if version else "", nccl=nccl, rocm=rocm)


def header_version(text: str) -> str:
    """The version in the text of nccl.h, as `2.21.5`; "" where a part of it is missing."""
    parts = dict(_DEFINED.findall(text))
    wanted = [parts.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(wanted) if all(wanted) else ""


Key = tuple[str, Libraries]  # mount namespace


class InstalledSoftware:
    """Versions of PyTorch and NCCL by job, mount namespace and path.

    There is one per agent; each installation is read once.
    """

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._lock = threading.Lock()
        self._software: dict[str, dict[Key, Software]] = {}  # by job

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        with self._lock:
            self._software = {job: known for job, known in self._software.items() if job in jobs}

    def of(self, job: str, pid: int, loaded: Libraries, *, read: bool = True) -> Software:
        """The versions that a process has loaded; read once for all ranks of a job that share a mount namespace.

        Without `read` no file is opened, so an unread version may be missing.
        """
        key = (self._host.link(pid, "ns/mnt") or str(pid), loaded)
        with self._lock:
            versions = self._software.setdefault(job, {})
        if key in versions:
            return versions[key]
        if not read or loaded == Libraries() or len(versions) >= MAX_READS:
            return Software(nccl=numbered(loaded.nccl))
        found, final = self._read(pid, loaded)
        if final:
            versions[key] = found
        return found

    def _read(self, pid: int, loaded: Libraries) -> tuple[Software, bool]:
        """What the files say, and whether that is all there is to know."""
        root, rights = self._host.root_of(pid), self._host.rights.now(pid)
        text: bytes | Unreadable = b""
        if loaded.torch:
            path = f"{root}{version_file(loaded.torch)}"
            text = self._reader.read_file(
                path, rights=rights, max_bytes=MAX_VERSION_FILE, timeout=TIMEOUT
            )
        nccl, head = numbered(loaded.nccl), b""
        if loaded.nccl and not nccl and not _stuck(text):
            path = f"{root}{header_file(loaded.nccl)}"
            piece = self._reader.read_from(
                path, 0, rights=rights, max_bytes=MAX_HEADER, timeout=TIMEOUT
            )
            head = piece.data if isinstance(piece, FilePiece) else b""
        version_text = "" if isinstance(text, Unreadable) else text.decode(errors="replace")
        nccl = nccl or header_version(head.decode(errors="replace"))
        again = isinstance(text, Unreadable) and text.errno == errno.EAGAIN
        return software(version_text, nccl), not again


def _stuck(answer: bytes | Unreadable) -> bool:
    return isinstance(answer, Unreadable) and answer.stuck
