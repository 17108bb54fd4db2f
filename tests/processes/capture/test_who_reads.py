"""A real agent beside a hostile job, as root and as the unit's user: the job's report holds no line that its user could not read himself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.system.hung import wait_until
from shared.system.users import ALICE, BOB, SERVICE, homes, put, system_python

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
RANK = """
exec(compile("def f():\\n  import time\\n  time.sleep(600)\\nprint('ready', flush=True)\\nf()", {source!r}, "exec"))
"""
LAUNCHER = """
import subprocess, sys, time
for rank, (source, words) in enumerate(zip(sys.argv[2::2], sys.argv[3::2])):
    world = dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29791")
    out = open(sys.argv[1] + "/ready%d" % rank, "w")
    subprocess.Popen([sys.executable, "-c", words], env=world, user={bob}, group={bob}, extra_groups=[], cwd="/", stdout=out, stderr=out)
while True:
    print("A LINE OF THE DAEMON", flush=True)
    time.sleep(0.2)
"""
CAPABILITIES = "-all,+sys_ptrace,+dac_read_search,+syslog"
LENT = [
    "setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", "--no-new-privs",
    f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", f"--bounding-set={CAPABILITIES}",
]  # fmt: skip


@pytest.fixture
def top() -> Iterator[Path]:
    with homes() as it:
        yield it


@pytest.mark.parametrize("agent", [[], LENT], ids=["root", "unit"])
def test_a_job_names_what_it_may_not_read(top: Path, agent: list[str]) -> None:
    """Frames in a file of root's and in one behind a closed folder; and a launcher whose own log lies behind one."""
    sources = [put(top / "rootonly.py", "A LINE OF ROOT\n" * 9, 0, 0o600)]
    sources.append(put(top / "alice/train.py", "A LINE OF ALICE\n" * 9, ALICE, 0o644))
    (top / "daemon").mkdir(mode=0o700)
    log = put(top / "daemon/slurmd.log", "", 0, 0o644)
    argv = [word for source in sources for word in (str(source), RANK.format(source=str(source)))]
    words = LAUNCHER.replace("{bob}", str(BOB))
    with log.open("ab") as out:
        launcher = subprocess.Popen(
            [system_python(), "-c", words, str(top), *argv], stdout=out, start_new_session=True
        )
    try:
        wait_until(lambda: all((top / f"ready{rank}").exists() and (top / f"ready{rank}").read_text() for rank in range(2)))  # fmt: skip
        dump = [*agent, sys.executable, "-m", "mldebug", "dump", "--pid", str(_rank(launcher.pid))]
        dump += ["--config", str(_config(top))]
        done = subprocess.run(dump, check=False, capture_output=True, text=True, timeout=120, cwd="/")  # fmt: skip
        text = "".join(file.read_text() for file in (top / "state").rglob("*.*") if file.is_file())
        assert "rootonly.py" in text, done
        assert "A LINE OF" not in text
    finally:
        os.killpg(launcher.pid, 9)
        launcher.wait()


def _config(top: Path) -> Path:
    (top / "state").mkdir()
    os.chown(top / "state", SERVICE, SERVICE)
    (top / "config.yaml").write_text(f"agent: {{state_dir: {top}/state}}\n")
    return top / "config.yaml"


def _rank(launcher: int) -> int:
    return int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0])
