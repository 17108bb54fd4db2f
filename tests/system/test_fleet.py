"""Agents on two hosts, each with a certificate of its own, a hub on the first, and a real gloo job that hangs across them: the hub has the incident once."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from processes.harness import SCRIPTS, clean_environment, wait_for
from system.hosts import job_on
from system.launching import need
from system.networks import NetworkHost, network
from system.sites import Site

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(400)]
NAMES = ("n1", "n2")
STRIKE = 280.0
INCIDENTS = "SELECT node, CAST(body AS TEXT) FROM events WHERE kind = 'incident'"


@pytest.fixture
def hosts() -> Iterator[dict[str, NetworkHost]]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    need("unshare", "nsenter", "ip")
    with network(NAMES) as found:
        yield found


def configured(folder: Path, name: str, site: Path) -> Path:
    own = f"certificate: {site}/{name}.pem, key: {site}/{name}.key, ca: {site}/ca.pem"
    config = folder / f"{name}.yaml"
    config.write_text(
        f"agent: {{state_dir: {folder}/{name}, listen: ''}}\n"
        "stall: {timeout: 8s, interval: 1s}\n"
        f"cluster: {{{own}, peers: ['n1'], networks: [10.77.0.0/24, 127.0.0.0/8], interval: 1s}}\n"
        "fleet: {hub: 'https://n1:9755'}\n"
        "hub: {pages: '127.0.0.1:9756', networks: [10.77.0.0/24, 127.0.0.0/8]}\n"
    )
    return config


@contextmanager
def started(host: NetworkHost, verb: str, config: Path) -> Iterator[Path]:
    """A verb that runs on a host; yields its log."""
    log = config.with_name(f"{config.stem}-{verb}.log")
    argv = host.inside(str(SCRIPTS / "mldebug"), verb, "--config", str(config))
    with log.open("wb") as file:
        child = subprocess.Popen(argv, stdout=file, stderr=file, env=clean_environment(config.parent), start_new_session=True)  # fmt: skip
    try:
        yield log
    finally:
        child.kill()
        child.wait(10)


def answer(host: NetworkHost, config: Path, path: str) -> Any:
    """What the hub says at its socket."""
    code = f"from mldebug_agents.web.unix_http import UnixConnection as U; from pathlib import Path; c = U(Path('{config.parent}/n1/hub'), 20.0, 'hub.sock')"
    code += f"; c.request('GET', '{path}'); print(c.getresponse().read().decode())"
    done = subprocess.run(host.inside(sys.executable, "-c", code), capture_output=True, text=True, check=False, timeout=60, env=clean_environment(config.parent))  # fmt: skip
    return json.loads(done.stdout) if done.stdout else None


def test_a_stall_across_nodes_is_in_the_hub_once(hosts: dict[str, NetworkHost], tmp_path: Path) -> None:  # fmt: skip
    site = Site(tmp_path / "site")
    for name, host in hosts.items():
        site.node(name, host.address)
    configs = {name: configured(tmp_path, name, site.folder) for name in NAMES}
    n1, n2 = hosts["n1"], hosts["n2"]
    options = ("--fault", "sleep", "--ranks", "3", "--after", "5")
    with (
        started(n1, "hub", configs["n1"]) as hub_log,
        started(n1, "agent", configs["n1"]) as first_log,
        started(n2, "agent", configs["n2"]) as second_log,
        job_on(list(hosts.values()), tmp_path / "job", 2, *options) as events,
    ):
        wait_for("rank 3 to sleep", (events / "strike.3").exists, STRIKE)

        def jobs() -> list[dict[str, Any]]:
            found = answer(n1, configs["n1"], "/api/v1/fleet/jobs")
            lines = found["jobs"] if found else []
            return [one for one in lines if one["attempts"]]

        def incidents() -> list[tuple[str, str]]:
            with suppress(sqlite3.OperationalError):  # there is no database yet
                link = sqlite3.connect(f"file:{tmp_path}/n1/hub/hub.sqlite?mode=ro", uri=True)
                with closing(link):
                    return link.execute(INCIDENTS).fetchall()
            return []

        try:
            wait_for("the incident in the hub", lambda: [one for _, one in incidents() if '"node":"n2"' in one and "rank_waiting" in one], 120)  # fmt: skip
            wait_for("both nodes of the attempt", lambda: any("n[1-2]" in one["attempts"][0]["nodes"] for one in jobs()), 60)  # fmt: skip
        except AssertionError as error:
            logs = "\n".join(log.read_text(errors="replace")[-2500:] for log in (hub_log, first_log, second_log))  # fmt: skip
            raise AssertionError(f"{error}\n{incidents()}\n{jobs()}\n{logs}") from None
        found = [json.loads(body) for _, body in incidents()]
        assert len({one["incident"] for one in found}) == 1
        named = {(one["rank"], one["node"]) for event in found for one in event.get("culprits", ())}
        assert named == {(3, "n2")}
        assert all(node in NAMES for node, _ in incidents())
