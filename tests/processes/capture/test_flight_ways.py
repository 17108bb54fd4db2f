"""A real job without the hook whose ranks have a worker server: `mldebug dump` has their Flight Recorders from there."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mldebug_agents.system.host import Host
from processes.needs import need_torch
from shared.system.hung import wait_until

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the job calls collectives of PyTorch")

WORLD = 3
JOB = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main

rank = int(os.environ["RANK"])

def train():
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
    if rank == 1:
        dist.broadcast(torch.ones(5), 0)
    dist.all_reduce(torch.ones(2))

dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
with worker_main():
    train()
"""


def start(folder: Path, rank: int) -> "subprocess.Popen[bytes]":
    own = {
        "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29961",
        "TORCH_WORKER_SERVER_SOCKET": str(folder / f"server{rank}"),
    }  # fmt: skip
    script = folder / "job.py"
    script.write_text(JOB)
    with (folder / f"log{rank}").open("wb") as log:
        argv = [sys.executable, str(script), f"file://{folder}/rendezvous"]
        return subprocess.Popen(argv, env=os.environ | own, stdout=log, stderr=log)


def waits(pid: int) -> bool:
    """Does it serve, and does its main thread sleep?"""
    found = Host().process_state(pid)
    names = [thread.name for thread in found.threads] if found else []
    return "pt_workerserver" in names and found is not None and found.state == "S"


def test_another_collective_is_named_without_the_hook(tmp_path: Path) -> None:
    ranks = [start(tmp_path, rank) for rank in range(WORLD)]
    try:
        wait_until(lambda: all(waits(one.pid) for one in ranks), 120)
        argv = [sys.executable, "-m", "mldebug", "dump", "--json", "--pid", str(ranks[0].pid)]
        answer = subprocess.run(argv, capture_output=True, timeout=200, check=False)
        report = json.loads(answer.stdout)
        diagnosis = report["diagnosis"]
        assert (diagnosis["verdict"], diagnosis["confidence"]) == ("collective_mismatch", "high")
        assert [one["rank"] for one in diagnosis["culprits"]] == [1], diagnosis
        assert "Flight Recorder of ranks 0-2: by the worker server" in diagnosis["evidence"]
        (gap,) = [one for one in report["gaps"] if one["what"] == "Flight Recorder"]
        assert (
            gap["reason"]
            == "ranks 0-2: had by the worker server, which does not tell where a call was made"
        )
        assert "mldebug run" in gap["way_out"]
        assert all(waits(one.pid) for one in ranks)
    finally:
        for one in ranks:
            one.send_signal(signal.SIGKILL)
            one.wait(20)
