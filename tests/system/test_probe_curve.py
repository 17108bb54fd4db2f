"""`mldebug probe curve` over eight hosts that each have a network of their own: 2, 4 and 8 of them, and a network that no longer keeps up."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes.harness import SCRIPTS, clean_environment, wait_for
from processes.needs import need_torch
from shared.system.own_names import own_name
from system.launching import need
from system.networks import NetworkHost, network

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(600)]
need_torch("the ranks are PyTorch's")
NAMES = tuple(f"c{number}" for number in range(1, 9))
SLOW = NAMES[4:]  # the network of these is no faster than
RATE, RATE_BYTES = "40mbit", 5e6


@contextmanager
def sshd(host: NetworkHost, folder: Path) -> Iterator[None]:
    """An sshd of that host, on its own address."""
    config = folder / f"sshd-{host.name}.conf"
    config.write_text(
        f"ListenAddress {host.address}:22\nHostKey {folder}/host_key\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPidFile none\nPermitRootLogin yes\nMaxStartups 100\n"
    )
    log = folder / f"sshd-{host.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(host.inside("/usr/sbin/sshd", "-D", "-e", "-f", str(config)), stdin=subprocess.DEVNULL, stdout=out, stderr=out)  # fmt: skip
    try:
        wait_for("sshd", lambda: "listening" in log.read_text(), 30)
        yield
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, NetworkHost], Path]]:  # fmt: skip
    """Eight hosts with sshd, and the folder with what ssh needs to reach them."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "nsenter", "ip", "tc")
    folder = Path("/run") / own_name()
    folder.mkdir(parents=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        for name in ("host", "user"):
            argv = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                str(folder / f"{name}_key"),
            ]
            subprocess.run(argv, check=True)
        (folder / "ssh_config").write_text(
            f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
            "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )
        (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
        (folder / "ssh").chmod(0o755)
        with network(NAMES) as found, ExitStack() as stack:
            for host in found.values():
                stack.enter_context(sshd(host, folder))
            yield found, folder
    finally:
        shutil.rmtree(folder)


def curve(hosts: tuple[dict[str, NetworkHost], Path], folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Type it on the first host."""
    found, keys = hosts
    own = {"MLDEBUG_PROBE_LOCK": str(folder / "lock"), "PATH": f"{keys}:{os.environ['PATH']}"}
    argv = [
        *(str(SCRIPTS / "mldebug"), "probe", "curve", "--device", "cpu", "--beside-jobs", "--nproc", "1"),
        *("--interface", "eth0", "--hosts", "c[1-8]", "--duration", "5m", *words),
    ]  # fmt: skip
    return subprocess.run(
        found[NAMES[0]].inside(*argv), env=clean_environment(folder) | own, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def test_the_curve_over_2_4_and_8_hosts_tells_where_the_network_no_longer_keeps_up(
    hosts: tuple[dict[str, NetworkHost], Path], tmp_path: Path
) -> None:
    for name in SLOW:
        hosts[0][name].shape(RATE)
    files = ("--csv", str(tmp_path / "curve.csv"), "--plot", str(tmp_path / "curve.png"))
    done = curve(hosts, tmp_path, "--sizes", "1MiB", "--repeats", "3", "--json", *files)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    points: list[dict[str, Any]] = json.loads(done.stdout)
    print(points)
    assert [one["nodes"] for one in points] == [2, 4, 8]
    assert [[result["ranks"] for result in one["results"]] for one in points] == [[2], [4], [8]]
    assert all(result["correct"] for one in points for result in one["results"])
    table = [line.split(",") for line in (tmp_path / "curve.csv").read_text().splitlines()]
    assert [row[0] for row in table] == ["nodes", "2", "4", "8"]
    speeds = [float(row[-1]) for row in table[1:]]
    assert speeds[2] < 1.5 * RATE_BYTES, f"over a network of {RATE}"
    assert min(speeds[:2]) > 1.5 * speeds[2], "only the last four of them are slow"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    over = [line for line in done.stderr.splitlines() if line.startswith("over ")]
    assert over == ["over 2 nodes: c[1-2]", "over 4 nodes: c[1-4]", "over 8 nodes: c[1-8]"]
