"""The log of the Fabric Manager, which root alone can read, with the rights of the service and with those of any user."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Gap
from mldebug.hardware.kernel_log.fabric_manager import CONFIGS
from processes.harness import clean_environment
from system.launching import need

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
SERVICE = "+sys_ptrace,+dac_read_search,+syslog"  # as deploy/systemd/mldebug.service has them
NOBODY = 65534
FATAL = "[Jul 09 2024 18:14:07] [ERROR] [tid 7] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33\n"
READS = """
import os, sys, msgspec
from mldebug_agents.hardware.fabric_manager import FabricManagerLog
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
if sys.argv[2] == "leave":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with Spawner() as spawner, Reader(spawner) as reader:
    log = FabricManagerLog(sys.argv[1], reader, lambda: 0.0)
    found = [one.xid for one in log.events()]
    sys.stdout.buffer.write(msgspec.json.encode((found, log.gap)))
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder that looks like a node whose log nobody but root may read."""
    for name, text in ((CONFIGS[0], "LOG_USE_SYSLOG=0\n"), ("var/log/fabricmanager.log", FATAL)):
        file = tmp_path / "node" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    file.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path / "node"


def read(node: Path, *before: str, leave: bool = False) -> tuple[list[int], Gap | None]:
    argv = [*before, sys.executable, "-c", READS, str(node), "leave" if leave else "stay"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, cwd="/", env=clean_environment(node))  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: tuple[list[int], Gap | None] = msgspec.json.decode(done.stdout, type=tuple[list[int], Gap | None])  # fmt: skip
    return found


def test_the_service_reads_it(node: Path) -> None:
    need("setpriv")
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    found = read(node, *user, f"--inh-caps={SERVICE}", f"--ambient-caps={SERVICE}")
    assert found == ([20034], None)


def test_who_may_not_is_told_so(node: Path) -> None:
    found, gap = read(node, leave=True)
    assert found == []
    assert gap is not None
    assert gap.reason == f"{node}/var/log/fabricmanager.log: permission denied"
    (node / "var/log/fabricmanager.log").chmod(0o644)
    assert read(node, leave=True) == ([20034], None)
