"""An agent on a host whose Fabric Manager gives up, says so in its own log, and later sets up the switches after all."""

import subprocess
import time
from pathlib import Path

import pytest

from mldebug.hardware.health.model import HealthState
from mldebug_agents.web.client import ask_agent
from processes.harness import SCRIPTS, clean_environment, wait_for
from system.launching import need
from system.networks import NetworkHost, network
from system.test_peers import root

__all__ = ["root"]  # used by pytest: hosts are namespaces

pytestmark = [pytest.mark.scenario, pytest.mark.system, pytest.mark.timeout(300)]
FEW = "[ERROR] [tid 7] detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"
READY = "[INFO] [tid 7] Successfully configured all the available NVSwitches to route GPU NVLink traffic."


def install(host: NetworkHost, folder: Path, log: Path) -> None:
    """Put the Fabric Manager's settings below /etc of this host alone, with this log."""
    layer = folder / "layer"
    layer.mkdir()
    steps = (
        f"mount -t tmpfs tmpfs {layer} && mkdir {layer}/upper {layer}/work"
        f" && mount -t overlay overlay -o lowerdir=/etc,upperdir={layer}/upper,workdir={layer}/work /etc"
        f" && mkdir /etc/nvidia-fabricmanager && echo LOG_FILE_NAME={log} > /etc/nvidia-fabricmanager/fabricmanager.cfg"
    )
    done = subprocess.run(host.inside("sh", "-c", steps), capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        pytest.skip(f"no layer over /etc can be mounted here: {done.stderr}")


def test_it_is_told_until_the_switches_are_set_up(tmp_path: Path) -> None:
    need("unshare", "nsenter", "ip")
    log, state = tmp_path / "fabricmanager.log", tmp_path / "state"
    config = tmp_path / "mldebug.yaml"
    config.write_text(f"agent: {{state_dir: {state}, listen: ''}}\n")

    def says(words: str) -> None:
        with log.open("a") as file:
            file.write(f"[{time.strftime('%b %d %Y %H:%M:%S')}] {words}\n")

    def found() -> tuple[HealthState, str] | None:
        snapshot = ask_agent(state)
        health = (one for one in (snapshot.health if snapshot else ()) if one.component == "gpu_errors")  # fmt: skip
        return next(((one.state, one.reason_code) for one in health), None)

    with network(("n1",)) as hosts, (tmp_path / "log").open("wb") as out:
        install(hosts["n1"], tmp_path, log)
        says(FEW)
        argv = hosts["n1"].inside(str(SCRIPTS / "mldebug"), "agent", "--config", str(config))
        agent = subprocess.Popen(argv, stdout=out, stderr=out, env=clean_environment(tmp_path))
        try:
            wait_for("it to be told", lambda: found() == (HealthState.UNHEALTHY, "fabric_incomplete"), 60)  # fmt: skip
            says(READY)
            wait_for("its end", lambda: (found() or ("",))[0] is HealthState.HEALTHY, 60)
        finally:
            agent.kill()
            agent.wait(10)
