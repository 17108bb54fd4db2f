"""A user makes a container of his own, in which he is root: bind mounts, links, FIFOs and giants take turns at the places that an agent learns of his job. Another user's stall is named on time, and nothing of root is shown."""

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from processes.agent.light import light_job
from processes.capture.flood import as_user
from processes.capture.test_changing_files import SECRET, is_watched, places
from processes.capture.test_hostile_jobs import (
    ATTACKER,
    RIGHTS,
    SOON,
    TIMEOUT,
    VICTIM,
    report_of,
)
from processes.harness import User, folder_for, wait_for
from processes.incidents.watching import settings, watching
from shared.system.hung import missing
from shared.system.users import system_python

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
]
OWN = [*as_user(ATTACKER), "unshare", "-Urmpf", "--mount-proc", "--kill-child"]


def his(folder: Path) -> Path:
    """A folder of his with what the job learns of."""
    for name in ("error.json", "metrics.jsonl", "step_9/model.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}")
    for one in (folder, *folder.rglob("*")):
        os.chown(one, ATTACKER, ATTACKER)
    return folder


@pytest.mark.parametrize("user", RIGHTS)
def test_what_is_mounted_and_laid_in_turns_in_a_user_s_own_container_shows_nothing(
    user: User,
) -> None:
    if subprocess.run([*OWN, "true"], check=False, capture_output=True).returncode:
        missing("namespaces that an ordinary user makes")
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(User()))
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_text(f"{SECRET}\n" * 99)
        secret.chmod(0o600)
        agent = stack.enter_context(watching(folder, settings(folder, stall=TIMEOUT), user))
        victim = stack.enter_context(light_job(folder / "victim", prefix=as_user(VICTIM)))
        wait_for("the victim is watched", lambda: is_watched(agent, victim), 60)
        at = his(folder / "hostile")
        more = {**places(at), "SECRET": str(secret)}
        job = stack.enter_context(
            light_job(at, 1, "flipping.py", prefix=OWN, more=more, python=system_python())
        )
        wait_for("it flips", lambda: re.search(r"flipped 50 times, mounted \d\d", job.log.read_text()), 60)  # fmt: skip
        wait_for("it is found", lambda: agent.log.count("ranks found") > 1, 60)
        os.kill(victim.ranks[1], signal.SIGSTOP)
        victim.hang()
        report = wait_for("the victim's report", lambda: report_of(agent, victim), SOON)
        job.processes[0].kill()  # what it leaves is read as well
        wait_for("its end", lambda: "killed by SIGKILL" in agent.log or " is over" in agent.log, 60)
        assert agent.process.poll() is None
        assert "internal error" not in agent.log
        assert "Traceback" not in agent.log
        contents = [one.read_bytes() for one in agent.state.rglob("*") if one.is_file()]
        root = Path("/etc/shadow").read_bytes().partition(b"\n")[0]
        assert not [one for one in contents if SECRET.encode() in one or root in one]
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
