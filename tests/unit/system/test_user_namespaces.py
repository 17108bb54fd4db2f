"""Who made the user namespace of a real process: its uids are all his."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug_agents.system.host import Host

USER, LENT = 62_002, 700_000
NESTED = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
depth = int(sys.argv[1])
if libc.unshare(0x10000000):
    sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
print("up", flush=True)
sys.stdin.readline()
os.setresuid(5, 5, 5)
if depth:
    libc.unshare(0x10000000)
print("lent", flush=True)
sys.stdin.read()
"""


@contextmanager
def lent_uids(depth: int) -> Iterator[int]:
    """A process of a user in a namespace of his own (and one inside it), to which root has lent a range of uids as newuidmap does."""
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    process = subprocess.Popen(
        [*as_user, "/usr/bin/python3", "-S", "-E", "-c", NESTED, str(depth)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "up\n":
            pytest.skip("users may make no user namespaces here")
        Path(f"/proc/{process.pid}/uid_map").write_text(f"0 {LENT} 1000\n")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "lent\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="root lends uids")
@pytest.mark.parametrize("depth", [0, 1])
def test_lent_uids_are_whose_the_namespace_is(depth: int) -> None:
    with lent_uids(depth) as pid:
        assert Host().status(pid).uid == LENT + 5
        assert Host().owner(pid) == USER


def test_who_is_in_our_namespace_or_gone_has_no_other_owner() -> None:
    assert Host().owner(os.getpid()) is None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert Host().owner(gone.pid) is None
