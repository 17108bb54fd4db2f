"""The files of a folder of stacks: which are read, what they hold, and what of them was not read."""

import codecs
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mldebug.capture.exports.json_texts import texts_inside
from mldebug.capture.exports.log_exports import unexported
from mldebug.capture.exports.packed import last_bytes, unpacked_name
from mldebug.capture.stacks.numbering import place_of
from mldebug.capture.stacks.reader import StackText, is_stack_line, read_text
from mldebug.core.files import unreadable
from mldebug.core.redact import clean
from mldebug.core.text import plural

MAX_FILES = 100_000
MAX_BYTES = 32 << 20
MAX_LINES = 1_000_000  # of one file: each costs some 240 bytes, also an empty one
MAX_DEPTH = 4  # folders below the one that is given: torchrun's logs have run, attempt and rank, for each node
_SOURCE = frozenset(
    (
        ".py",
        ".pyi",
        ".c",
        ".cc",
        ".cpp",
        ".cu",
        ".cuh",
        ".h",
        ".hpp",
        ".rs",
        ".go",
        ".java",
        ".js",
        ".ts",
        ".css",
        ".patch",
        ".diff",
    )
)
_PAGES = frozenset((".md", ".markdown", ".rst", ".adoc"))
# No log: troubleshooting.log and readme-run.err are what a job wrote
_ABOUT = re.compile(
    r"(?:readme|changelog|contributing|troubleshooting|faq)(?:[-_ ](?!.*rank)[\w-]{1,20})?(?:\.(?:md|markdown|rst|adoc|txt|html?|in))?",
    re.IGNORECASE,
)
_HTML = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#34;": '"', "&#x27;": "'", "&#39;": "'", "&amp;": "&"}  # fmt: skip


class DumpFile(NamedTuple):
    """A file of stacks: its name, the unix time of its last change, its content; `trouble`: why it could not be read, or not all of it.
    `damaged`: it is compressed, and not all of it could be unpacked.
    """

    name: str
    at: float
    text: StackText
    trouble: str = ""
    damaged: bool = False


def dump_paths(where: Path) -> list[Path]:
    """The path itself if it is a file; else the files of the folder and its subfolders, sorted by name, within limits. Hidden
    ones are left out, and links to folders are not followed, nor is source code, or a text about a program beside records: what it quotes
    is no evidence. Raises an error for a folder that cannot be read.
    """
    try:
        if where.is_file():
            return [] if _is_no_record(where, [where]) else [where]
        found: list[Path] = []
        for folder, folders, names in os.walk(where, onerror=_refuse):
            depth = len(Path(folder).relative_to(where).parts)
            folders[:] = sorted(
                one for one in folders if not one.startswith(".") and depth < MAX_DEPTH
            )
            found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
            if len(found) >= MAX_FILES:
                break
        return [one for one in found[:MAX_FILES] if one.is_file() and not _is_no_record(one, found)]
    except OSError as error:
        raise unreadable(where, error) from error


def _is_no_record(path: Path, beside: Sequence[Path]) -> bool:
    """Source code, a page on how to use a program, or, beside files of other kinds, any text with marks of layout."""
    suffix = path.suffix.lower()
    if suffix in _SOURCE or _ABOUT.fullmatch(path.name):
        return True
    return suffix in _PAGES and any(one.suffix.lower() not in (*_PAGES, *_SOURCE) for one in beside)


def _refuse(error: OSError) -> None:
    raise error


def read_file(path: Path, where: Path) -> DumpFile:
    """Read one file of stacks, named relative to `where`. An error, or too many bytes, is noted in the result as `trouble`."""
    name = unpacked_name(clean(path.name if path == where else str(path.relative_to(where)), 300))
    try:
        status = path.stat()
        if status.st_size > MAX_BYTES:
            return DumpFile(
                name, status.st_mtime, StackText(), f"larger than {MAX_BYTES >> 20} MiB"
            )
        content, damage = last_bytes(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return DumpFile(
                name, status.st_mtime, StackText(), f"unpacked larger than {MAX_BYTES >> 20} MiB"
            )
        text = decoded_text(content)
        if _is_long(text) or _is_long(text := texts_inside(unexported(text), is_stack_line)):
            return DumpFile(name, status.st_mtime, StackText(), f"longer than {MAX_LINES:,} lines")
        return DumpFile(name, status.st_mtime, read_text(text), damage, bool(damage))
    except OSError as error:
        return DumpFile(name, 0.0, StackText(), unreadable(path, error).message)


def _is_long(text: str) -> bool:
    return text.count("\n") + text.count("\0") > MAX_LINES


def decoded_text(data: bytes) -> str:
    """The text of a file with these bytes: UTF-8, or UTF-16 as PowerShell writes it; HTML's signs as what they stand for."""
    wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = data.decode("utf-16" if wide else "utf-8", errors="replace")
    if "&lt;module&gt;" not in text and "&quot;MainThread&quot;" not in text:
        return text
    return re.sub("|".join(_HTML), lambda sign: _HTML[sign[0]], text)


def unread_words(file: DumpFile) -> str:
    """What could not be read of a file, in words: `notes.txt: no stacks in it`, or how many of its lines and the first of
    them; "" where all of it was read.
    """
    if file.trouble:
        return f"{file.name}: {file.trouble}"
    if not file.text.unread:
        return "" if file.text.processes or not file.text.lines else f"{file.name}: no stacks in it"
    if not file.text.processes:
        return f"{file.name}: {plural(file.text.unread, 'line')}, no stacks in it (it says {file.text.first!r})"
    return f"{file.name}: {file.text.unread} of {plural(file.text.lines, 'line')} are of no form that mldebug knows ({file.text.first!r})"


def named_like_others(file: DumpFile, files: Sequence[DumpFile]) -> bool:
    """Whether the file is named like one of `files` in which stacks were found, but for the number of the rank in it: `rank3.txt` beside
    `rank0.txt`. False for a name without a number.
    """
    place = place_of(file.name)
    if place.number < 0:
        return False
    shape = file.name.replace(str(place.number), "#")
    shapes = Counter(
        one.name.replace(str(other.number), "#")
        for one in files
        if one.text.processes and (other := place_of(one.name)).number >= 0
    )
    return shapes[shape] > 0
