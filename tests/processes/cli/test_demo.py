"""The demo, run for real: it names the rank it struck, and leaves nothing behind."""

import re
import subprocess
import uuid
from pathlib import Path

import pytest

from processes.harness import MARK, SCRIPTS, User, environment_of_jobs, folder_for, marked
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the demo trains with PyTorch")

STRUCK = 2  # of the demo's four
FAULTS = {"as_is": ("sleep", "mismatch", "loop", "dead"), "ordinary": ("stopped", "fifo", "lock")}
# The others are faults of test_scenarios.py, struck by the same demo
ALWAYS = ("sleep", "mismatch", "stopped")


@pytest.mark.parametrize(
    ("user", "fault"),
    [
        pytest.param(user, fault, marks=() if fault in ALWAYS else pytest.mark.long)
        for user, faults in FAULTS.items()
        for fault in faults
    ],
    indirect=["user"],
)
def test_the_demo_names_the_rank_it_struck(fault: str, user: User) -> None:
    with folder_for(user) as folder:
        mark = uuid.uuid4().hex
        html = folder / "report.html"
        done = subprocess.run(
            [str(SCRIPTS / "mldebug"), "demo", "--fault", fault, "--html", str(html)],
            check=False, capture_output=True, text=True, timeout=300, cwd=folder,
            env=environment_of_jobs(folder) | {MARK: mark}, **user.popen(),
        )  # fmt: skip
        left = marked(mark)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^step \d+ loss \d", done.stdout, re.MULTILINE), done.stdout
        assert re.search(rf"\nRank(s .*)? {STRUCK}\b.*\n(.*\n)*.*\nCulprit\n> rank {STRUCK} ", done.stdout), done.stdout  # fmt: skip
        assert str(html) in done.stdout
        assert re.search(rf"^The fault struck rank {STRUCK}. The agent named rank {STRUCK}, \d+ s later\.$", done.stdout, re.MULTILINE)  # fmt: skip
        assert "<html" in html.read_text()
        assert left == []
        assert [path.name for path in Path(folder).glob("mldebug-demo-*")] == []
