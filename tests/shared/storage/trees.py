"""For tests of trees: what `du` says, and a directory in which anything happens at random."""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

NAMES = [b"a", b"b", b"model.pt", b"two\nlines", b"caf\xe9", b"\xff\xfe", b"-x", "ü".encode()]


def du(root: Path) -> tuple[int, int]:
    """Inodes and allocated bytes, as `du -x` counts them."""
    found = []
    for how in ("--inodes", "-B1"):
        done = subprocess.run(["du", "-s", "-x", how, root], capture_output=True, check=False)
        found.append(int(done.stdout.split()[0]))
    return found[0], found[1]


class Chaos:
    """Changes the directory `root`, and `outside` beside it, from where things come and where they go."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._root, self._outside = os.fsencode(root), os.fsencode(outside)
        self._folders = [self._root]
        self._verbs: list[tuple[Callable[[], None], int]] = [
            (self._write, 30),
            (self._append, 15),
            (self._truncate, 8),
            (self._remove, 18),
            (self._rename, 10),
            (self._link, 10),
            (self._symlink, 3),
            (self._make_folder, 8),
            (self._move_folder, 4),
            (self._remove_folder, 1),
            (self._to_and_fro, 6),
        ]

    def step(self) -> None:
        """Do one thing; what cannot be done is not done."""
        verbs, weights = zip(*self._verbs, strict=True)
        with contextlib.suppress(OSError, IndexError):
            self._random.choices(verbs, weights)[0]()

    def _folder(self) -> bytes:
        found = self._random.choice(self._folders)
        if found != self._root and not os.path.isdir(found):
            self._folders.remove(found)
            return self._root
        return found

    def _name(self) -> bytes:
        return self._random.choice(NAMES) + b"%d" % self._random.randrange(40)

    def _file(self) -> bytes:
        folder = self._folder()
        return os.path.join(folder, self._random.choice(os.listdir(folder)))

    def _new(self) -> bytes:
        return os.path.join(self._folder(), self._name())

    def _write(self) -> None:
        with open(self._new(), "wb") as file:
            file.write(b"x" * self._random.choice((0, 1, 5000, 70_000)))

    def _append(self) -> None:
        with open(self._file(), "r+b") as file:
            file.seek(self._random.choice((0, 40_000, 1 << 20)))  # a sparse file
            file.write(b"y" * 6000)

    def _truncate(self) -> None:
        os.truncate(self._file(), self._random.choice((0, 10, 9000)))

    def _remove(self) -> None:
        os.unlink(self._file())

    def _rename(self) -> None:
        os.rename(self._file(), self._new())

    def _link(self) -> None:
        os.link(self._file(), self._new(), follow_symlinks=False)

    def _symlink(self) -> None:
        os.symlink(self._random.choice((b"..", b".", self._root, b"nowhere")), self._new())

    def _make_folder(self) -> None:
        if len(self._folders) < 60:
            made = self._new() + b".d"
            os.mkdir(made)
            self._folders.append(made)

    def _move_folder(self) -> None:
        moved = self._new() + b".m"
        os.rename(self._random.choice(self._folders[1:]), moved)
        self._folders.append(moved)

    def _remove_folder(self) -> None:
        shutil.rmtree(self._random.choice(self._folders[1:]), ignore_errors=True)

    def _to_and_fro(self) -> None:
        """Something leaves the tree, or comes back."""
        if self._random.random() < 0.5:
            os.rename(self._file(), os.path.join(self._outside, self._name()))
        else:
            back = os.path.join(self._outside, self._random.choice(os.listdir(self._outside)))
            to = self._new()
            os.rename(back, to)
            if os.path.isdir(to) and not os.path.islink(to):
                self._folders.append(to)
