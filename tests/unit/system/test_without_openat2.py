"""A kernel before Linux 5.6, or a filter of system calls, has no openat2: what a user may not have opened stays closed where the way is gone
step by step. These tests are others, once more in a process to which the kernel refuses that call.
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may filter its system calls")

ROOT = Path(__file__).parents[3]
OPENAT2 = 437
PROMISES = (
    "tests/unit/system/test_job_paths.py::test_links_lead_where_he_could_go",
    "tests/unit/system/test_job_paths.py::test_a_folder_that_changes_all_the_while",
    "tests/unit/system/test_job_paths.py::test_what_he_has_mounted_himself",
    "tests/unit/state/test_hostile_folder.py::test_a_link_in_place_of_a_folder_is_what_goes",
    "tests/unit/state/test_hostile_folder.py::test_what_its_owner_has_mounted_on_a_report_stays_and_nothing_there_is_touched",
)


def refuse(number: int) -> None:
    """From now on this process and its children get this error for openat2: four instructions of BPF, as in seccomp(2)."""
    rows = ((0x20, 0, 0, 0), (0x15, 0, 1, OPENAT2), (6, 0, 0, 0x50000 | number), (6, 0, 0, 0x7FFF0000))  # fmt: skip
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    which = struct.pack("@HP", len(rows), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(22, 2, which, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert libc.syscall(OPENAT2, -100, b"/", bytes(24), 24) == -1
    assert ctypes.get_errno() == number


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM], ids=["old kernel", "filter"])
def test_the_same_holds_without_it(number: int, tmp_path: Path) -> None:
    alone = ["-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "inner")]
    command = [sys.executable, __file__, str(number), *alone, *PROMISES]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=100)  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


if __name__ == "__main__":
    refuse(int(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
