"""Evidence of tests/fixtures/field, damaged at random: bytes and lines lost, doubled, mixed, cut and exchanged, numbers made wild, files misnamed.

The same seed damages alike in every run.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.diagnosis.fieldcases import FIELD

KINDS = ("frames", "posted", "reported", "stacks", "logs", "flight", "blockers")
MAX_BYTES = 300_000  # of a file; the few that are larger are left out
POOL = 200  # files whose bytes are mixed into others
JUNK = (
    b"\x00", b"\xff\xfe", b"\x1b[31m", b"\r", b"\t", b"{", b"}", b"[", b"]", b'"', b"'", b"\xe2\x80\xa8", b"99999999999999999999999", b"-1",
    b"1e999", b"NaN", b"null", b"<b>", b"%s", b"rank", b"[rank99999999999]: ", b"Process 0: x\n", b"Thread 0x (idle)\n",
    b"Traceback (most recent call last):\n", b'  File "" , line 0, in \n',
)  # fmt: skip
NAMES = ("x.json", "rank-1.txt", "rank99999999999999999999.txt", "a.gz", "capture-n.json", "exit.json", "-", "trace.pickle")  # fmt: skip
NUMBERS = (b"0", b"-7", b"99999999999999999999", b"4294967296", b"", b"1.5", b"007", b"213")
WILD: tuple[object, ...] = (None, -1, 1e300, "", [], {}, True, 10**30, "x" * 9)
PREFIXES = (b"n%d: ", b"[rank%d]: ", b"2026-01-01T00:00:0%dZ ", b"")


class Mutator:
    """Damages copies of recorded cases, by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cases = sorted(one for kind in KINDS for one in (FIELD / kind).iterdir() if one.is_dir())  # fmt: skip
        files = [file for case in self.cases for file in _files(case)]
        self._pool = [one.read_bytes() for one in self.random.sample(files, POOL)]
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._lose_line, self._double_line, self._cut_end, self._put_junk, self._change_byte, self._shuffle, self._append,
            self._change_number, self._prefix, self._lose_bytes, self._mix, self._ends_of_lines, self._change_json,
        )  # fmt: skip

    def make(self, folder: Path) -> Path:
        """A damaged case below the folder, in which nothing else may lie. Returns the recorded one of which it is a copy."""
        case = self.random.choice(self.cases)
        for file in _files(case):
            target = folder / file.relative_to(case)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = file.read_bytes()
            if self.random.random() < 0.6:
                data = self.damaged(data)
            if self.random.random() < 0.03:
                target = target.with_name(self.random.choice(NAMES))
            if self.random.random() < 0.97 and not target.is_dir():
                target.write_bytes(data)
        return case

    def damaged(self, data: bytes) -> bytes:
        """In one to nine ways."""
        for _ in range(self.random.choice((1, 1, 2, 4, 9))):
            data = self.random.choice(self._ways)(data)
        return data

    def _lose_line(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        del lines[self.random.randrange(len(lines))]
        return b"\n".join(lines)

    def _double_line(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        place = self.random.randrange(len(lines))
        lines[place:place] = [self.random.choice(lines)] * self.random.choice((1, 3, 50))
        return b"\n".join(lines)

    def _cut_end(self, data: bytes) -> bytes:
        return data[: self.random.randrange(len(data) + 1)]

    def _put_junk(self, data: bytes) -> bytes:
        place = self.random.randrange(len(data) + 1)
        return data[:place] + self.random.choice(JUNK) + data[place:]

    def _change_byte(self, data: bytes) -> bytes:
        if not data:
            return data
        place = self.random.randrange(len(data))
        return data[:place] + bytes([self.random.randrange(256)]) + data[place + 1 :]

    def _shuffle(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        self.random.shuffle(lines)
        return b"\n".join(lines)

    def _append(self, data: bytes) -> bytes:
        return data + b"\n" + self.random.choice(self._pool)

    def _change_number(self, data: bytes) -> bytes:
        found = list(re.finditer(rb"\d+", data))
        if not found:
            return data
        one = self.random.choice(found)
        return data[: one.start()] + self.random.choice(NUMBERS) + data[one.end() :]

    def _prefix(self, data: bytes) -> bytes:
        return b"\n".join(self._prefixed(line) for line in data.split(b"\n"))

    def _prefixed(self, line: bytes) -> bytes:
        prefix = self.random.choice(PREFIXES)
        return (prefix % self.random.randrange(9) if prefix else b"") + line

    def _lose_bytes(self, data: bytes) -> bytes:
        start = self.random.randrange(len(data) + 1)
        return data[:start] + data[start + self.random.randrange(400) :]

    def _mix(self, data: bytes) -> bytes:
        """Two processes write into one file."""
        other = iter(self.random.choice(self._pool).split(b"\n"))
        found: list[bytes] = []
        for line in data.split(b"\n"):
            found.append(line)
            if self.random.random() < 0.5:
                found.extend(one for one in [next(other, None)] if one is not None)
        return b"\n".join(found)

    def _ends_of_lines(self, data: bytes) -> bytes:
        return data.replace(b"\n", self.random.choice((b"\r\n", b"\n\n", b"\\n", b" ")))

    def _change_json(self, data: bytes) -> bytes:
        """Values of JSON become others, or are lost."""
        if data[:1] not in (b"{", b"["):
            return data
        try:
            return json.dumps(self._changed(json.loads(data))).encode()
        except (ValueError, RecursionError):
            return data

    def _changed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._wild(one) for key, one in value.items() if self.random.random() > 0.02}  # fmt: skip
        if isinstance(value, list):
            return [self._changed(one) for one in value if self.random.random() > 0.02]
        return value

    def _wild(self, value: Any) -> Any:
        return self.random.choice(WILD) if self.random.random() < 0.05 else self._changed(value)


def _files(case: Path) -> list[Path]:
    return sorted(one for one in case.rglob("*") if one.is_file() and one.stat().st_size < MAX_BYTES)  # fmt: skip


def emptied(folder: Path) -> Path:
    """The folder, new and empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
