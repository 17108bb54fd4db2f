"""Which PyTorch and which NCCL a process has loaded: the paths of their libraries, and the texts beside them. Pure.

Nothing of it is imported. A job chooses these paths and texts, so they are only ever opened through the reader child.
"""

import re
from collections.abc import Mapping
from posixpath import basename, dirname

import msgspec

from mldebug.capture.flight_recorder.access import NAMES
from mldebug.core.redact import clean
from mldebug.jobs.known_issues.model import Software

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
_TOLD = re.compile(r"^__version__(?: {0,2}: {0,2}str)? {0,4}= {0,4}['\"]([^'\"\n]{1,80})['\"]", re.MULTILINE)  # fmt: skip
_HIP = re.compile(r"^hip\b[^=\n]{0,40}= {0,4}['\"]\d", re.MULTILINE)
_DEFINED = re.compile(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d{1,4})\s*$", re.MULTILINE)


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    """Paths as the process itself sees them; "" where a library is not loaded, or not known."""

    torch: str = ""  # the folder of the package
    nccl: str = ""  # the file


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank runs, as it was read when it was found."""

    libraries: Libraries = Libraries()
    settings: Mapping[str, str] = {}  # of the allow-list for known traps
    recorder: Mapping[
        str, str
    ] = {}  # what decides how its Flight Recorder can be had, as it stands


def recorder_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment decides how a Flight Recorder can be had. Paths among it are a job's: nothing is cleaned."""
    return {
        name: environ[name] for name in NAMES & environ.keys() if len(environ[name]) < MAX_VALUE
    }


def libraries(maps: bytes) -> Libraries:
    """Find both in /proc/PID/maps; a library whose file was removed since tells nothing of its version."""
    torch, nccl = _TORCH.search(maps), _NCCL.search(maps)
    file = _path(nccl[1]) if nccl else ""
    removed = torch is not None and torch[0].endswith(_DELETED.encode())
    return Libraries(torch=_path(torch[1]) if torch and not removed else "", nccl=file)


def _path(found: bytes) -> str:
    path = found.decode(errors="replace")
    usable = len(path) <= MAX_PATH and "\ufffd" not in path and "\\" not in path
    return path if usable and not path.endswith(_DELETED) else ""


def version_file(torch: str) -> str:
    """Where a PyTorch in that folder says its version."""
    return f"{torch}/version.py"


def header_file(nccl: str) -> str:
    """Where an NCCL of that file says its version, if its name does not: `…/nccl/lib/libnccl.so.2`."""
    return f"{dirname(dirname(nccl))}/include/nccl.h"


def numbered(nccl: str) -> str:
    """The version in the name of the file, "" where it has none."""
    found = _NUMBERED.fullmatch(basename(nccl))
    return found[1] if found else ""


def software(version_text: str, nccl: str) -> Software:
    """What torch/version.py says, and the version of NCCL."""
    told = _TOLD.search(version_text)
    rocm = _HIP.search(version_text) is not None
    return Software(torch=clean(told[1], 80) if told else "", nccl=nccl, rocm=rocm)


def header_version(text: str) -> str:
    """`2.21.5` from the head of nccl.h, "" where a part is missing."""
    parts = dict(_DEFINED.findall(text))
    wanted = [parts.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(wanted) if all(wanted) else ""
