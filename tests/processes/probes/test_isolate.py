"""`mldebug probe isolate` on real gloo ranks of this machine: one that is slowed, stopped or broken is named, nobody else."""

import json
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.probes.measurement import free_port
from processes.harness import MARK, SCRIPTS, environment_of_jobs, light_python, marked, wait_for
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]

STOPPED = """
import os, signal, threading, time
def stop():
    while os.environ.get("LOCAL_RANK") is None:
        time.sleep(0.002)
    if os.environ["LOCAL_RANK"] in {ranks!r}:
        os.kill(os.getpid(), signal.{signal})
os.register_at_fork(after_in_child=lambda: threading.Thread(target=stop, daemon=True).start())
"""


def isolate(folder: Path, *words: str, fault: str = "") -> tuple[int, dict[str, Any], str]:
    """Type it for ranks that have this fault; what it printed, and that it left nothing."""
    python = str(light_python(folder, fault))
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "probe", "isolate", "--device", "cpu", "--beside-jobs", "--json", "--python", python, *words],
        check=False, capture_output=True, text=True, timeout=360,
        env=environment_of_jobs(folder) | {MARK: mark, "MLDEBUG_PROBE_LOCK": str(folder / "lock")},
    )  # fmt: skip
    wait_for("all processes to end", lambda: not marked(mark), 20)
    assert done.stdout or "took part" in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def named(table: dict[str, Any]) -> list[list[str]]:
    return [one["members"] for one in table["answer"].get("culprits", [])]


def test_ranks_of_which_none_is_bad_are_fine(tmp_path: Path) -> None:
    code, output, progress = isolate(tmp_path, "--nproc", "3")
    assert named(output) == [], json.dumps(output)
    assert (code, output["answer"]["outcome"]) == (0, "fine"), json.dumps(output)
    assert "members: rank 0, rank 1, rank 2" in progress


@pytest.mark.parametrize(("signal", "how"), [("SIGSTOP", "timed_out"), ("SIGKILL", "failed")])
def test_two_ranks_that_stop_or_die_are_both_named(tmp_path: Path, signal: str, how: str) -> None:
    words = ("--nproc", "5", "--size", "4MiB", "--step", "6s")
    fault = STOPPED.format(ranks=("1", "3"), signal=signal)
    code, output, _ = isolate(tmp_path, *words, fault=fault)
    assert sorted(named(output)) == [["rank 1"], ["rank 3"]], json.dumps(output)
    assert code == 1
    pairs = [
        one for one in output["trials"] if "rank 1" in one["members"] and len(one["members"]) == 2
    ]
    assert {one["outcome"] for one in pairs} == {how}


def test_nodes_that_were_asked_for_other_payloads_do_as_the_first_one(tmp_path: Path) -> None:
    """Else a healthy node would look broken: what one sends the other does not expect. How fast they are is not asked here."""
    port, sizes = free_port(), ("1MiB", "1MiB", "4MiB", "1MiB")
    words = ("--nodes", "4", "--rendezvous", f"127.0.0.1:{port}", "--nproc", "1", "--step", f"{20 * PATIENCE:g}s", "--slow-below", "0.01")  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        results = [
            pool.submit(isolate, folder, *words, "--node", str(node), "--size", sizes[node])
            for node, folder in enumerate(folders(tmp_path, 4))
        ]
        code, answer, _ = results[0].result()
    assert named(answer) == [], json.dumps(answer)
    assert (code, answer["answer"]["outcome"]) == (0, "fine")


def folders(above: Path, number: int) -> list[Path]:
    found = [above / str(one) for one in range(number)]
    for one in found:
        one.mkdir()
    return found


def test_a_node_that_does_not_come_is_named_in_half_of_the_time_for_all(tmp_path: Path) -> None:
    """Before that half PyTorch is imported twice, and after it there is one try: the rest of the time must suffice for these."""
    duration, step = 40 * PATIENCE, 10
    words = ("--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--nproc", "1")
    code, output, _ = isolate(
        tmp_path, *words, "--duration", f"{duration:g}s", "--step", f"{step}s"
    )
    assert named(output) == [["node 1"]], json.dumps(output)
    assert (
        f"it did not come within {duration / 2:g} s" in output["answer"]["culprits"][0]["evidence"]
    )
    assert code == 1


def test_what_cannot_be_asked_is_told(tmp_path: Path) -> None:
    for words, sentence in (
        (("--nproc", "1"), "there is nobody to compare with: 1 process takes part"),
        (("--nodes", "2"), "2 nodes must meet somewhere"),
        (("--nodes", "2", "--node", "2", "--rendezvous", "a:1"), "nodes are numbered from 0 to 1"),
        (("--rendezvous", "a"), "is no HOST:PORT"),
        (("--nproc", "3", "--duration", "20s"), "--duration 20s leaves no time for a try of 30 s"),
    ):
        done = subprocess.run(
            [str(SCRIPTS / "mldebug"), "probe", "isolate", "--device", "cpu", "--beside-jobs", *words],
            check=False, capture_output=True, text=True, timeout=120,
            env=environment_of_jobs(tmp_path) | {"MLDEBUG_PROBE_LOCK": str(tmp_path / "lock")},
        )  # fmt: skip
        assert done.returncode == 2
        assert sentence in done.stderr
