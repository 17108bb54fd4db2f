"""Hosts as people write them: lists and hostfiles, with slots, ports, users and comments."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from mldebug.cluster.hostfile import NamedHosts, parse_hosts, read_hosts
from mldebug.core.errors import UsageError

TWO = ("node1", "node2")
MANY = {
    "a folded list": ("node[1-2]", TWO, "", 0),
    "Open MPI": ("node1 slots=8\nnode2 slots=8 max_slots=16\n", TWO, "", 0),
    "Open MPI, blanks and comments": ("# ours\n\n  node1 slots = 8  # fast\nnode2 max-slots=8\n#node3", TWO, "", 0),
    "Hydra": ("node1:8\nnode2:8\n", TWO, "", 0),
    "Horovod": ("node1:8,node2:8", TWO, "", 0),
    "DeepSpeed of Windows": ("node1 slots=4\r\nnode2 slots=4\r\n", TWO, "", 0),
    "PBS": ("node1\n" * 8 + "node2\n" * 8, TWO, "", 0),
    "LSF": ("node1 8 node2 8", TWO, "", 0),
    "folded with slots": ("node[1-2]:8", TWO, "", 0),
    "lines and lists": ("node1, \n node2,node1\n", TWO, "", 0),
    "users": ("root@node1\nroot@node2", TWO, "root", 0),
    "ports": ("node1:2222\nnode2:2222", TWO, "", 2222),
    "a port by name": ("node1 port=2222 user=ada\nnode2", TWO, "ada", 2222),
    "a list longer than a file's name": ("node1,node2," * 40 + "node1", TWO, "", 0),
    "blanks in brackets": ("node[1, 2] slots=8", TWO, "", 0),
    "addresses": ("10.0.0.1:8\n10.0.0.2:8", ("10.0.0.1", "10.0.0.2"), "", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("mark", [None, "", "^"])
def test_hosts_of_every_form(name: str, mark: str | None, tmp_path: Path) -> None:
    """As a text, as a file, and as clush takes a file."""
    text, *right = MANY[name]
    if mark is not None:
        (tmp_path / "hostfile").write_text(text)
        text = f"{mark}{tmp_path}/hostfile"
    assert read_hosts(text) == NamedHosts(*right)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names 0 nodes"),
        ("# nobody\n", "names 0 nodes"),
        ("node1 -oProxyCommand=x", "stands in no name of a host"),
        ("-v", "no name of a host"),
        ("node1;reboot", "stands in no name of a host"),
        ("root@-v", "no name of a host"),
        ("a[1-", "is not a list of nodes"),
        ("a[0-99999999]", "names 100,000,000 nodes"),
        ("root@node1 ada@node2", "several users"),
        ("node1:2222 node2:2223", "several ports"),
        ("^/no/such/file", "there is no file"),
        ("n" * (1 << 21), "more than a million characters"),
        ("".join(f"n[1-{65_536 - n}] " for n in range(50)), "names more than 262,144"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_hosts(text)


def test_a_file_that_holds_no_hosts_says_which(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1; rm\n")
    with pytest.raises(UsageError, match=r"in the file .*hosts: "):
        read_hosts(str(tmp_path / "hosts"))


def test_fifty_thousand_lines_are_read_at_once() -> None:
    assert len(parse_hosts("\n".join(f"node{n} slots=8" for n in range(50_000))).names) == 50_000


@pytest.mark.parametrize(
    "more", ["a ", ", ", "a[", "a]", "[a] ", "slots = ", "#", "a@", ":", "\r", " port ="]
)
def test_twice_the_text_takes_twice_the_time(more: str) -> None:
    """Where it takes a time at all: 64 KiB of `a a a` took 1.2 s."""
    quick, slow = (min(cpu_of(more * (size // len(more))) for _ in range(3)) for size in (16_384, 65_536))  # fmt: skip
    assert slow < 0.1 or slow < 10 * quick


def cpu_of(text: str) -> float:
    """Seconds of CPU time to read or refuse it."""
    began = time.process_time()
    with suppress(UsageError):
        parse_hosts(text)
    return time.process_time() - began
