"""`mldebug probe isolate` over real networks: a host behind a shaped link, a way that is cut, and both at once are named."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import clean_environment
from system.machine import need
from system.networks import NetworkHost, network

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]

NAMES = ("n0", "n1", "n2", "n3", "n4")
Hosts = dict[str, NetworkHost]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid():
        pytest.skip("networks need root")
    need("unshare", "nsenter", "ip", "tc")
    with network(NAMES) as some:
        yield some


def isolate(hosts: Hosts, folder: Path, *words: str) -> dict[str, Any]:
    """Type it on every host; what the first one answers."""
    started = []
    for number, host in enumerate(hosts.values()):
        argv = [
            *(sys.executable, "-m", "mldebug", "probe", "isolate", "--device", "cpu", "--beside-jobs"),
            *("--nproc", "1", "--nodes", str(len(hosts)), "--node", str(number), "--json"),
            *("--rendezvous", f"{hosts['n0'].address}:29511", "--step", "12s", *words),
        ]  # fmt: skip
        own = {"MLDEBUG_PROBE_LOCK": str(folder / host.name), "GLOO_SOCKET_IFNAME": "eth0"}
        process = subprocess.Popen(
            host.inside(*argv), env=clean_environment(folder) | own, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
    results = [process.communicate(timeout=560) for process in started]
    assert results[0][0], results[0][1]
    answer: dict[str, Any] = json.loads(results[0][0])
    return answer


def named(table: dict[str, Any]) -> set[frozenset[str]]:
    return {frozenset(one["members"]) for one in table["answer"]["culprits"]}


@pytest.mark.long
def test_a_host_behind_a_shaped_link_is_named(hosts: Hosts, tmp_path: Path) -> None:
    hosts["n3"].shape("40mbit")
    output = isolate(hosts, tmp_path, "--size", "2MiB")
    assert named(output) == {frozenset({"n3"})}, json.dumps(output)


@pytest.mark.long
def test_a_link_that_is_shaped_is_named_and_not_its_ends(hosts: Hosts, tmp_path: Path) -> None:
    hosts["n1"].cable(hosts["n4"], "40mbit")
    output = isolate(hosts, tmp_path, "--size", "2MiB")
    assert named(output) == {frozenset({"n1", "n4"})}, json.dumps(output)


@pytest.mark.long
def test_a_way_that_is_cut_is_named_and_not_its_ends(hosts: Hosts, tmp_path: Path) -> None:
    hosts["n1"].part(hosts["n4"])
    output = isolate(hosts, tmp_path, "--size", "2MiB")
    assert named(output) == {frozenset({"n1", "n4"})}, json.dumps(output)


def test_a_shaped_host_and_a_cut_way_at_once(hosts: Hosts, tmp_path: Path) -> None:
    hosts["n2"].shape("40mbit")
    hosts["n1"].part(hosts["n4"])
    output = isolate(hosts, tmp_path, "--size", "2MiB")
    assert named(output) == {frozenset({"n2"}), frozenset({"n1", "n4"})}, json.dumps(output)
