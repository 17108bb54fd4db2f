"""The unit file as systemd reads it: no warning, the exposure that the docs give, nothing that would blind the agent."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mldebug.config.schema import Config, load_config

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
SYSTEMD = DEPLOY / "systemd"
EXAMPLES = sorted((SYSTEMD / "mldebug.service.d").glob("*.conf.example"))
# Each of these hides other users' processes, the kernel log, devices, job logs, or every mount's real flags
BLINDING = {
    *("ProcSubset=pid", "PrivateUsers=yes"),
    *("ProtectKernelLogs=yes", "PrivateDevices=yes", "ProtectClock=yes", "PrivateTmp=yes"),
    *("ProtectHome=yes", "ProtectHome=tmpfs", "ProtectHome=read-only", "ProtectSystem=strict"),
    "PrivateNetwork=yes",
}


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here, and with all drop-ins."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI"):
            pytest.fail("this test needs systemd-analyze")
        pytest.skip("this test needs systemd-analyze")
    text = (SYSTEMD / "mldebug.service").read_text()
    text = text.replace("/opt/mldebug/bin/mldebug", shutil.which("true") or "/bin/true")
    file = tmp_path / "mldebug.service"
    file.write_text(text)
    return file


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], check=False, capture_output=True, text=True
    )


def test_systemd_understands_every_line(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_understands_every_line_of_the_probe_s_timer(unit: Path) -> None:
    names = ("mldebug-probe.service", "mldebug-probe.timer")
    for name in names:
        text = (SYSTEMD / name).read_text()
        text = text.replace("/opt/mldebug/bin/mldebug", shutil.which("true") or "/bin/true")
        unit.with_name(name).write_text(text)
    done = analyze("verify", "--man=no", *(str(unit.with_name(name)) for name in names))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    shared = ("User=", "Group=", "StateDirectory=", "StateDirectoryMode=", "UMask=")
    both = [
        [line for line in (SYSTEMD / name).read_text().splitlines() if line.startswith(shared)]
        for name in ("mldebug.service", "mldebug-probe.service")
    ]
    assert both[0] == both[1], "systemd gives the state dir to whoever started last"


def test_systemd_understands_every_line_of_the_drop_ins(unit: Path) -> None:
    folder = unit.with_name("mldebug.service.d")
    folder.mkdir()
    for example in EXAMPLES:
        shutil.copy(example, folder / example.name.removesuffix(".example"))
    assert len(EXAMPLES) == 3
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_exposure_is_what_the_docs_say(unit: Path) -> None:
    output = analyze("security", "--offline=true", str(unit)).stdout
    measured = re.search(r"exposure level for \S+: ([0-9.]+)", output)
    assert measured, output
    page = (REPOSITORY / "docs/rights.md").read_text()
    documented = re.search(r"exposure of \*\*([0-9.]+)\*\*", page)
    assert documented
    assert measured[1] == documented[1]


@pytest.mark.parametrize("name", ["", *(file.name for file in EXAMPLES)])
def test_the_exposure_with_each_drop_in_is_what_the_docs_say(unit: Path, name: str) -> None:
    if name:
        folder = unit.with_name("mldebug.service.d")
        folder.mkdir()
        shutil.copy(SYSTEMD / "mldebug.service.d" / name, folder / "one.conf")
    output = analyze("security", "--offline=true", str(unit)).stdout
    measured = re.search(r"exposure level for \S+: ([0-9.]+)", output)
    assert measured, output
    row = f"with `{name.removesuffix('.example')}`" if name else "`mldebug.service`"
    assert f"| {row} | {measured[1]} |" in (REPOSITORY / "docs/security.md").read_text()


def test_nothing_in_the_unit_blinds_the_agent() -> None:
    lines = (SYSTEMD / "mldebug.service").read_text().splitlines()
    assert not BLINDING & set(lines)
    assert "KillMode=process" in lines, "a child inside a GPU driver is never killed"
    assert "OOMPolicy=continue" in lines, "one dump's end is not the agent's"
    assert not [line for line in lines if line.startswith(("DeviceAllow=", "DevicePolicy="))]


def test_the_example_configuration_is_the_default_of_the_node() -> None:
    example = load_config(DEPLOY / "mldebug.yaml")
    assert example.agent.state_dir == Path("/var/lib/mldebug")
    assert example.stall == Config().stall
    assert example.agent.listen == Config().agent.listen
