"""One rank of two becomes slower on its GPU: after how many seconds it is named, and with which cause; settings as shipped.

`MLDEBUG_GPU_SLOW=sleep,batch,neighbour,none,kernels` says which; each takes up to six minutes. `kernels` has the hook, and NCCL times its
collectives: only that shows which GPU is late.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gpu import world
from gpu.hanging import reports_of, run_of
from mldebug.status.snapshot import Snapshot
from processes.harness import wait_for

JOB = world.ROOT / "tests" / "jobs" / "slow_gpu.py"
WANTED = "MLDEBUG_GPU_SLOW"
CULPRIT = 1
AFTER = 140.0  # seconds of even steps
PATIENCE = 180.0  # seconds in which it is to be named
FAULTS = ("sleep", "neighbour", "batch", "none", "kernels")
TIMED = {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
EVEN = "MLDEBUG_GPU_EVEN"  # seconds of even steps, instead of `AFTER`


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Each row that was named, or all."""
    wanted = [one for one in os.environ.get(WANTED, "").split(",") if one] or FAULTS
    for fault in wanted:
        try:
            table = slowed(folder, fault, *options)
        except (AssertionError, OSError, ValueError) as error:
            table = {"result": f"{type(error).__name__}: {error}"[:1500]}
        print(fault, table, flush=True)
        yield fault, table


def follow(
    snapshot: Snapshot | None,
    uses: list[str],
    looks: list[tuple[float, int]],
    after: float,
    step: int,
) -> None:
    """Note who uses the GPUs by each new full reading, and the step every ten seconds. `after`: seconds since the strike."""
    if not looks or after >= looks[-1][0] + 10:
        looks.append((round(after, 1), step))
    for gpu in snapshot.gpus.gpus if snapshot and snapshot.gpus else ():
        some = ", ".join(f"{one.pid} {one.active}" for one in gpu.processes or ())
        line = f"GPU {gpu.index}: {some or 'nobody is listed'}"
        last = next((one for one in reversed(uses) if f"GPU {gpu.index}:" in one), "")
        if not last.endswith(line):
            uses.append(f"{after:.0f} s: {line}")


def slowed(folder: Path, fault: str, *options: str) -> dict[str, Any]:
    """Run it, strike it, and wait for the report."""
    with ExitStack() as stack:
        agent = stack.enter_context(world.agent(folder))
        after, timed = float(os.environ.get(EVEN, AFTER)), fault == "kernels"
        job = stack.enter_context(world.job(
            folder, "--fault", fault, "--after", str(after), *options, script=JOB, hook=timed, more=TIMED if timed else {},
        ))  # fmt: skip
        wait_for(f"the strike: {job.tail()}", lambda: job.alive() and job.struck_at(), 120.0 + after)  # fmt: skip
        struck, before = job.struck_at() or world.now(), job.step
        if fault == "neighbour":
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
            stack.callback(world.end, world.neighbour(gpus[CULPRIT]))
        end = time.monotonic() + PATIENCE
        uses: list[str] = []
        looks: list[tuple[float, int]] = []
        while time.monotonic() < end and not reports_of(agent, job):
            job.alive()
            follow(agent.snapshot(), uses, looks, world.now() - struck, job.step)
            time.sleep(0.5)
        took = world.now() - struck
        snapshot = agent.snapshot()
        state = run_of(snapshot, job) if snapshot else None
        facts: dict[str, Any] = {"seconds": round(took, 1), "steps_a_second": round((job.step - before) / took, 2)}  # fmt: skip
        facts["slowness"] = repr(state.slowness)[:3000] if state else "no run"
        facts["use"], facts["step_looks"] = uses, looks
        found = reports_of(agent, job)
    if not found:
        return {"result": "right" if fault == "none" else "NOT NAMED", **facts, "log": agent.log[-800:]}  # fmt: skip
    diagnosis = found[0]["diagnosis"]
    named = [one.get("rank") for one in diagnosis["culprits"] or ()]
    if fault == "batch":  # its work is larger, and it is not to blame
        right = (
            not named and f"uneven, and none is to blame: rank {CULPRIT} " in diagnosis["summary"]
        )
    else:
        right = fault != "none" and named == [CULPRIT] and diagnosis["verdict"] == "straggler"
    return {"result": "right" if right else "WRONG", **facts, "verdict": diagnosis["verdict"], "named": named, "confidence": diagnosis["confidence"], "summary": diagnosis["summary"], "evidence": diagnosis["evidence"]}  # fmt: skip
