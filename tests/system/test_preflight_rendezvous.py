"""`mldebug preflight --rendezvous` on hosts that each have a network of their own: what keeps them apart is told with who it is."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes.harness import MLDEBUG, clean_environment
from system.launching import need
from system.networks import NetworkHost, network

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(300)]
NAMES = ("m1", "m2", "m3")
PORT = 29507
LISTENS = """
import socket, sys
place = socket.socket()
place.bind((sys.argv[1], int(sys.argv[2])))
place.listen()
print("listens", flush=True)
sys.stdin.read()  # until the test goes
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, NetworkHost]]:
    """Three hosts that reach each other."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")
    with network(NAMES) as found:
        yield found


@contextmanager
def line(host: NetworkHost, *words: str, undo: str) -> Iterator[None]:
    """Run a command of `ip` in a host, and its opposite at the end."""
    subprocess.run(host.inside("ip", *words), check=True)
    try:
        yield
    finally:
        subprocess.run(host.inside("ip", *[undo if one == "add" else one for one in words]), check=True)  # fmt: skip


def ask(hosts: dict[str, NetworkHost], folder: Path, where: str, *, alone: bool = False) -> dict[str, Any]:  # fmt: skip
    """What each host finds, as all are asked at the same moment."""

    def one(name: str) -> Any:
        (folder / name).mkdir(exist_ok=True)
        config = folder / name / "mldebug.yaml"
        config.write_text(f"agent: {{state_dir: {folder / name}/state}}\n")
        argv = [*MLDEBUG, "preflight", "--json", "--config", str(config), "--rendezvous", where]
        meeting = [] if alone else ["--meeting", f"{len(hosts)}:{os.getpid()}"]
        done = subprocess.run(
            hosts[name].inside(*argv, *meeting), check=False, capture_output=True, text=True,
            timeout=120, env=clean_environment(folder),
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)["answers"][0]

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = dict(zip(hosts, pool.map(one, hosts), strict=True))
    return {
        name: [(check["state"], check["sentence"]) for check in answer["checks"] if check["stage"] == "rendezvous"]
        for name, answer in answers.items()
    }  # fmt: skip


def test_hosts_that_reach_each_other_are_fine_and_nothing_listens_afterwards(
    hosts: dict[str, NetworkHost], tmp_path: Path
) -> None:
    where = f"{hosts['m1'].address}:{PORT}"
    found = ask(hosts, tmp_path, where)
    assert [[state for state, _ in one] for one in found.values()] == [["fine"]] * 3, found
    assert found["m1"][0][1] == f"{where} is this node's, and its port is free: 3 of 3 nodes came, 2 others reached from here"  # fmt: skip
    for host in hosts.values():
        listening = subprocess.run(host.inside("cat", "/proc/net/tcp", "/proc/net/tcp6"), check=True, capture_output=True, text=True).stdout  # fmt: skip
        assert not [one for one in listening.splitlines() if len(one.split()) > 3 and one.split()[3] == "0A"], listening  # fmt: skip


def test_a_port_that_is_taken_is_told_with_who_has_it(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    where = f"{hosts['m1'].address}:{PORT}"
    argv = hosts["m1"].inside(sys.executable, "-c", LISTENS, "127.0.0.1", str(PORT))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        found = ask(hosts, tmp_path, where)
    print(found)
    assert found["m1"][0][0] == "failed"
    assert found["m1"][0][1].startswith(f"{where} is in use by python"), found
    assert [one[0][0] for one in found.values()] == ["failed"] * 3, "nobody can meet there"


def test_two_hosts_without_a_way_between_them_are_named(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    """Both reach the rendezvous, which looks well: the job would hang in its first collective."""
    there = f"{hosts['m3'].address}/32"
    with line(hosts["m2"], "route", "add", "prohibit", there, undo="del"):
        found = ask(hosts, tmp_path, f"{hosts['m1'].address}:{PORT}")
    print(found)
    assert [state for state, _ in found["m1"]] == ["fine"]
    assert [(state, words.split(":")[0]) for state, words in found["m2"]] == [("failed", "cannot reach m3")]  # fmt: skip
    assert [(state, words.split(":")[0]) for state, words in found["m3"]] == [("failed", "cannot reach m2")]  # fmt: skip


def test_a_host_without_a_way_to_the_rendezvous_is_told_by_itself(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    where = f"{hosts['m1'].address}:{PORT}"
    with line(hosts["m3"], "route", "add", "unreachable", f"{hosts['m1'].address}/32", undo="del"):
        found = ask(hosts, tmp_path, where)
    print(found)
    assert found["m3"] == [("failed", f"{where} cannot be reached: no way there: a route is missing, or a firewall rejects it")]  # fmt: skip
    assert found["m2"][0][0] == "fine"
    assert "2 of 3 nodes came" in found["m2"][0][1]


def test_one_host_alone_asks_whether_the_rendezvous_answers(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    where = f"{hosts['m1'].address}:{PORT}"
    found = ask(hosts, tmp_path, where, alone=True)
    assert found["m1"] == [("fine", f"{where} is this node's, and its port is free")]
    assert found["m2"] == [("fine", f"{where} answers")], "nobody listens there yet: that is as it should be"  # fmt: skip
    unknown = ask({"m1": hosts["m1"]}, tmp_path, "no-such-host.invalid:29500", alone=True)
    assert unknown["m1"][0][0] == "failed"
    assert unknown["m1"][0][1].startswith("no-such-host.invalid:29500 is not known here: ")


def test_localhost_is_no_place_for_several_nodes_to_meet(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    found = ask(hosts, tmp_path, "localhost:29500")
    assert {words for one in found.values() for _, words in one} == {
        "localhost:29500 is each node itself: 3 nodes need the name or the address of one of them"
    }
