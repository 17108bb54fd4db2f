"""What stays in a process after large blocks have passed through its threads."""

import platform
import subprocess
import sys

import pytest

KEEPS = """
import base64, os, sys, threading
from mldebug_agents.system.service.large_blocks import give_back_large_blocks

def size():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10

def work():
    for _ in range(3):
        data = bytearray()
        for _ in range(320):
            data += os.urandom(1 << 16)
        text = base64.b64encode(bytes(data)).decode()
        del data, text

if sys.argv[1] == "gives back":
    give_back_large_blocks()
before = size()
threads = [threading.Thread(target=work) for _ in range(3)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(size() - before)
"""
PASSED = 20 << 20


def kept(way: str) -> int:
    """Bytes by which a process has grown after 20 MiB passed three times through each of three threads."""
    done = subprocess.run([sys.executable, "-c", KEEPS, way], capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    return int(done.stdout)


def test_large_blocks_leave_the_process() -> None:
    assert kept("gives back") < PASSED / 4


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give them back")
def test_the_control_keeps_them() -> None:
    assert kept("as it is") > PASSED
