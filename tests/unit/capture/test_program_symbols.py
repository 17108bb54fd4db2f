"""py-spy reads the symbols of a rank's own program, which the job has written: they cost this dump, not the node's memory."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug_agents.capture.stacks.pyspy import PySpy
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import wait_until

SECTION = struct.Struct(
    "<IIQQQQIIQQ"
)  # name, type, flags, address, offset, size, link, info, alignment, entry
SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
TABLE, STRINGS = 2, 3  # types of sections
NAME = (
    24 << 20
)  # bytes of one long name; each symbol is called by what is left of it from another place


def program(folder: Path, symbols: int) -> Path:
    """A Python whose file has so many symbols with names of 24 MiB."""
    file = folder / "python3"
    shutil.copy(os.path.realpath(getattr(sys, "_base_executable", sys.executable)), file)
    data = bytearray(file.read_bytes())
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, number = struct.unpack_from("<HH", data, 0x3A)
    heads = [SECTION.unpack_from(data, offset + each * size) for each in range(number)]
    heads = [head for head in heads if head[1] != TABLE]
    table = len(data)
    data += SYMBOL.pack(0, 0, 0, 0, 0, 0)
    data += b"".join(SYMBOL.pack(1 + each, 0x12, 0, 1, 4096 + each, 8) for each in range(symbols))
    strings = len(data)
    data += b"\0" + b"a" * NAME + b"\0"
    end = len(data)
    heads += [
        (0, TABLE, 0, 0, table, strings - table, len(heads) + 1, 1, 8, SYMBOL.size),
        (0, STRINGS, 0, 0, strings, end - strings, 0, 0, 1, 0),
    ]
    data += b"".join(SECTION.pack(*head) for head in heads)
    struct.pack_into("<Q", data, 0x28, end)
    struct.pack_into("<H", data, 0x3C, len(heads))
    struct.pack_into("<H", data, 0x3E, 0)  # sections have no names: they moved
    file.write_bytes(data)
    file.chmod(0o755)
    return file


@contextmanager
def sleeping(python: Path) -> Iterator[int]:
    """The pid of this Python, while it sleeps."""
    words = [str(python), "-S", "-c", "import time; print(1, flush=True); time.sleep(600)"]
    environment = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            wait_until(lambda: Path(f"/proc/{process.pid}/wchan").exists())
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(("symbols", "read"), [(4, True), (100, False)])
def test_long_names_cost_one_dump(tmp_path: Path, symbols: int, read: bool) -> None:
    with sleeping(program(tmp_path, symbols)) as hostile, Spawner() as spawner:
        pyspy = PySpy(spawner)
        found = pyspy.dump(hostile, timeout=60.0)
        assert bool(found.stacks) == read, found
        if not read:
            assert (
                found.failure
                == "py-spy: to read what this program is made of takes more than 1 GiB of memory"
            )
        assert not found.killed
        assert Path(f"/proc/{hostile}/status").read_text().split("State:")[1].split()[0] == "S"
        with sleeping(Path(sys.executable)) as other:
            assert pyspy.dump(other, timeout=60.0).stacks
