"""The real /dev/kmsg: lines that are written into it arrive as events, once, in time, for every reader.

What a program writes there has a facility that is not the kernel's, so only a source in a drill obeys it; each line
holds `mldebug-test` and a PCI address of its own.
"""

import errno
import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Gap
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEventKind, Origin
from mldebug_agents.hardware.kernel_log import KernelLogSource
from shared.system.hung import wait_until

KMSG = Path("/dev/kmsg")
NOBODY = 65534
READS_AS_NOBODY = f"""
import os, sys, msgspec
from mldebug_agents.hardware.kernel_log import KernelLogSource
source = KernelLogSource()
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.stdout.buffer.write(msgspec.json.encode(source.read().gap))
"""


writes = pytest.mark.skipif(
    os.geteuid() != 0 or ("CI" not in os.environ and not os.access(KMSG, os.W_OK)),
    reason="needs the right to write /dev/kmsg",
)


@pytest.fixture
def address() -> str:
    """The PCI address of a GPU that nobody has."""
    return f"{random.randrange(1 << 16):04x}:{random.randrange(256):02x}:00"


def write(text: str, priority: int = 4) -> None:
    """Each line through an open of its own: the kernel limits the rate of each."""
    KMSG.write_text(f"<{priority}>{text} (mldebug-test)\n")


def ours(source: KernelLogSource, address: str) -> list[Burst]:
    return [one for one in source.read().bursts if one.root.device == f"{address}.0"]


@writes
def test_an_xid_arrives_once_and_in_time_at_two_agents(address: str) -> None:
    first, second = KernelLogSource(user_space=True), KernelLogSource(user_space=True)
    while first.read().behind or second.read().behind:
        pass
    before = time.time()
    write(f"NVRM: Xid (PCI:{address}): 31, pid=4711, name=python, Ch 00000010, MMU Fault")
    for source in (first, second):
        wait_until(partial(ours, source, address), 10)
        (burst,) = ours(source, address)
        assert (burst.root.xid, burst.root.pid, burst.count) == (31, 4711, 1)
        assert burst.root.origin is Origin.USER_SPACE
        assert before - 1 <= burst.root.at <= time.time()
    write(f"NVRM: Xid (PCI:{address}): 43, pid=4711, name=python, Ch 00000010")
    wait_until(lambda: ours(first, address)[0].count == 2, 10)
    assert ours(first, address)[0].root.xid == 31


@writes
def test_what_was_written_before_the_agent_came_is_found_and_not_taken_for_the_kernels(address: str) -> None:  # fmt: skip
    write(f"NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.", priority=3)
    drill, agent = KernelLogSource(user_space=True), KernelLogSource()

    wait_until(lambda: ours(drill, address), 10)
    news = agent.read()
    while news.behind:
        news = agent.read()
    assert not [one for one in news.bursts if one.root.device == f"{address}.0"]
    assert news.gap is None
    assert news.counts.records > 0


@writes
def test_after_closing_nothing_is_taken_twice(address: str) -> None:
    source = KernelLogSource(user_space=True)
    write(f"NVRM: Xid (PCI:{address}): 13, pid=1, name=x")
    wait_until(lambda: ours(source, address), 10)
    source.close()
    write(f"NVRM: Xid (PCI:{address}): 13, pid=1, name=x")

    wait_until(lambda: ours(source, address)[0].count > 1, 10)
    assert ours(source, address)[0].count == 2


@writes
def test_a_line_of_many_bytes_and_one_that_is_not_text(address: str) -> None:
    source = KernelLogSource(user_space=True)
    write(f"NVRM: Xid (PCI:{address}): 95, pid=1, name=caf\u00e9\x1b[31m, " + "x" * 800)

    wait_until(lambda: ours(source, address), 10)
    (burst,) = ours(source, address)
    assert burst.root.process == "café"
    assert "\x1b" not in burst.root.text


@writes
def test_a_lost_gpu_whose_line_has_several_lines(address: str) -> None:
    source = KernelLogSource(user_space=True)
    KMSG.write_text(f"<3>NVRM: The NVIDIA GPU {address}.0\nNVRM: fallen off the bus (mldebug-test)\n")  # fmt: skip

    wait_until(lambda: ours(source, address), 10)
    assert ours(source, address)[0].root.kind is KernelEventKind.GPU_LOST


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_may_not_read_it_is_told_how_to() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS_AS_NOBODY], capture_output=True, check=True, timeout=60
    )
    gap = msgspec.json.decode(done.stdout, type=Gap | None)
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "0"
    may_open = KMSG.stat().st_mode & 0o004

    if restricted or not may_open:
        assert gap is not None
        word = "CAP_SYSLOG" if may_open else "ProtectKernelLogs"
        assert word in gap.way_out
        assert os.strerror(errno.EPERM if may_open else errno.EACCES).lower() in gap.reason
    else:
        assert gap is None
