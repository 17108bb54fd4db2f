"""`mldebug preflight` over real sshd: each of what is planted on a host is told with that host, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes.harness import SCRIPTS, clean_environment, free_port
from system.hosts import Hosts, ssh_hosts
from system.launching import need

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(300)]

PYTHON = """#!/bin/sh
# the training environment: another version on one host
[ "$(hostname)" = h2 ] && torch=2.9.1 || torch=2.8.0
[ -e {folder}/same ] && torch=2.8.0
echo "mldebug-packages {{\\"python\\": \\"3.11.2\\", \\"torch\\": \\"$torch\\", \\"numpy\\": \\"2.1.0\\"}}"
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Three hosts with sshd."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
    with ssh_hosts(3) as some:
        yield some


def preflight(hosts: Hosts, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = folder / "mldebug.yaml"
    file.write_text(f"transports: {{ssh: {{kind: ssh, options: '{hosts.options}'}}}}\nagent: {{state_dir: {folder}/state}}\n")  # fmt: skip
    argv = [SCRIPTS / "mldebug", "preflight", "--json", "--config", file, "--wait", "60s"]
    done = subprocess.run(
        [*map(str, argv), *arguments, "--there", sys.executable],
        check=False, capture_output=True, text=True, timeout=200, env=clean_environment(folder),
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def python_in(folder: Path) -> str:
    path = folder / "python"
    path.write_text(PYTHON.format(folder=folder))
    path.chmod(0o755)
    return str(path)


def failures(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.get("nodes", ""), one["sentence"]) for one in found["findings"] if one["level"] == "failed"]  # fmt: skip


def test_what_is_planted_on_a_host_is_told_with_it(hosts: Hosts, tmp_path: Path) -> None:
    data, python = tmp_path / "data", python_in(tmp_path)
    data.mkdir()
    read_only = f"mount -t tmpfs -o ro none {data}"
    subprocess.run(hosts.hosts["h3"].inside("sh", "-c", read_only), check=True)
    known = hosts.folder / "ssh_config"
    before = known.read_text()
    known.write_text(f"Host h4\n  HostName 127.0.0.1\n  Port {free_port()}\n{before}")
    try:
        code, found = preflight(hosts, tmp_path, "--hosts", "h[1-4]", "--folder", str(data), "--python", python)  # fmt: skip
    finally:
        known.write_text(before)
        subprocess.run(hosts.hosts["h3"].inside("umount", str(data)), check=True)
    assert (code, found["go"]) == (1, False)
    reasons = dict(failures(found))
    assert "Connection refused" in reasons.pop("h4")
    assert reasons.pop("h3") == f"{data} cannot be written: it is read-only"
    assert reasons.pop("") == "not the same on all nodes: torch: 2.8.0 on h[1,3], 2.9.1 on h2"
    assert reasons == {}


def test_hosts_that_are_alike_may_start(hosts: Hosts, tmp_path: Path) -> None:
    data, python = tmp_path / "data", python_in(tmp_path)
    data.mkdir()
    (tmp_path / "same").touch()
    code, found = preflight(hosts, tmp_path, "--hosts", "h[1-3]", "--folder", str(data), "--python", python)  # fmt: skip
    assert failures(found) == []
    assert (code, found["go"], found["verdict"]) == (0, True, "go: 3 nodes checked")
    assert [one["node"] for one in found["answers"]] == ["h1", "h2", "h3"]
    assert [one for one in found["findings"] if "clock" in one["sentence"]] == []
    assert list(data.iterdir()) == []


def test_a_python_that_hangs_on_one_host_is_told(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "same").touch()
    python = python_in(tmp_path)
    text = Path(python).read_text()
    Path(python).write_text(text.replace("#!/bin/sh\n", '#!/bin/sh\n[ "$(hostname)" = h1 ] && exec sleep 1000\n'))  # fmt: skip
    code, found = preflight(hosts, tmp_path, "--hosts", "h[1-3]", "--python", python)
    assert code == 1
    assert failures(found) == [("h1", f"{python} did not start within 30 s")]
    assert [one["node"] for one in found["answers"]] == ["h1", "h2", "h3"]
