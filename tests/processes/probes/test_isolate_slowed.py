"""`mldebug probe isolate` where one of the ranks has to share its processor: a measurement, for a machine on which little else runs."""

import json
from pathlib import Path

import pytest

from processes.probes.test_isolate import isolate, named

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]

SLOWED = """
import os, threading, time
def burn():
    while os.environ.get("LOCAL_RANK") is None:
        time.sleep(0.002)
    while os.environ["LOCAL_RANK"] == "2":
        pass
def busy():
    for _ in range(6):
        threading.Thread(target=burn, daemon=True).start()
os.register_at_fork(after_in_child=busy)
"""


def test_a_rank_slowed_by_a_busy_loop_is_named(tmp_path: Path) -> None:
    code, output, _ = isolate(tmp_path, "--nproc", "4", "--size", "1MiB", fault=SLOWED)
    assert named(output) == [["rank 2"]], json.dumps(output)
    assert (code, output["answer"]["sentence"]) == (1, "bad: rank 2")
