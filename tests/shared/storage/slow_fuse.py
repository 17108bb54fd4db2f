"""A FUSE filesystem with one file, `shard`, whose reads take as long as a control file says. Serves the kernel's protocol (linux/fuse.h) itself.

python slow_fuse.py MOUNTPOINT CONTROL BYTES
"""

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.system.hung import missing, wait_until

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 36, 38, 42
SILENT = (FORGET, BATCH_FORGET, INTERRUPT)
HEAD = struct.Struct("<2I2Q4I")  # length, opcode, unique, node, uid, gid, pid, padding
ROOT, FILE = 1, 2
SOURCE = "bucket"


class Server:
    """Answers the kernel's requests; each read in a thread of its own, after its delay."""

    def __init__(self, device: int, control: Path, size: int) -> None:
        self._device, self._control = device, control
        self._data = os.urandom(size)

    def serve(self) -> None:
        """Answer until the filesystem is unmounted."""
        while True:
            try:
                request = os.read(self._device, (1 << 20) + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                return  # unmounted
            _, opcode, unique, node, *_ = HEAD.unpack_from(request)
            if opcode not in SILENT:
                self._serve(opcode, unique, node, request[HEAD.size :])

    def _serve(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode == READ:
            _, offset, size = struct.unpack_from("<2QI", body)
            part = self._data[offset : offset + size]
            delay = float(self._control.read_text() or 0)
            threading.Timer(delay, self._answer, (unique, part)).start()
        elif opcode == LOOKUP and body != b"shard\0":
            self._answer(unique, b"", errno.ENOENT)
        elif opcode in (RELEASE, FLUSH, READDIR, RELEASEDIR, DESTROY):
            self._answer(unique, b"")
        else:
            found = self._fixed(opcode, node)
            self._answer(unique, found, 0 if found else errno.ENOSYS)

    def _fixed(self, opcode: int, node: int) -> bytes:
        if opcode == INIT:
            return init_answer()
        if opcode == LOOKUP:  # nothing is kept: each open asks anew
            return struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + self._attributes(FILE)
        if opcode == GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + self._attributes(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<Q2I", node, 0, 0)
        if opcode == STATFS:
            return struct.pack("<5Q10I", 1 << 30, 1 << 29, 1 << 29, 9, 5, 4096, 255, 4096, *[0] * 7)
        return b""

    def _attributes(self, node: int) -> bytes:
        size = len(self._data) if node == FILE else 0
        mode = 0o100644 if node == FILE else 0o40755
        return struct.pack(
            "<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
        )

    def _answer(self, unique: int, body: bytes, error: int = 0) -> None:
        try:
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError:  # who asked has been interrupted, or it is unmounted
            return


def init_answer() -> bytes:
    """What a server answers when the kernel introduces itself."""
    return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 1, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)


def mount(target: str, source: str, kind: str) -> int:
    """Mount a filesystem that this process will serve; the descriptor by which the kernel asks."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    return device


@contextmanager
def mounted_by(script: Path, target: Path, *words: str) -> Iterator[None]:
    """A filesystem that the script serves at the target, for as long as the context lasts."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("umount"):  # fmt: skip
        missing("needs root and /dev/fuse")
    paths = os.pathsep.join(one for one in sys.path if one)
    server = subprocess.Popen(
        [sys.executable, str(script), str(target), *words], env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        wait_until(lambda: target.is_mount() or server.poll() is not None)
        if server.poll() is not None:
            pytest.skip("no FUSE can be mounted here")
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=False)
        server.kill()
        server.wait()


@contextmanager
def slow_fuse(folder: Path, size: int, seconds: float) -> Iterator[tuple[Path, Path]]:
    """The mounted filesystem, and the file that says how many seconds a read takes: `seconds` at first."""
    target, control = folder / "bucket", folder / "delay"
    target.mkdir()
    control.write_text(str(seconds))
    with mounted_by(Path(__file__), target, str(control), str(size)):
        yield target, control


if __name__ == "__main__":
    Server(mount(sys.argv[1], SOURCE, "fuse.slow"), Path(sys.argv[2]), int(sys.argv[3])).serve()
