"""Record how the ranks of eight real gloo ranks wait, for `bench.stragglerpower` to judge as often as wanted.

    MLDEBUG_BENCH_ROUNDS=10 MLDEBUG_BENCH_CASES='healthy;sleep +10 %' python -m bench.stragglerrecords FILE

In each round each case is sampled `STRETCHES` times without a pause; a line of FILE is one stretch, with the case and the load of the machine.
"""

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.stragglers import CASES, ROUNDS, Job, quota, slow_mount
from mldebug.config.schema import load_config
from mldebug.goodput.comparison.blocked_calls import Glance
from mldebug.goodput.straggler import SampledStretch
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.stacks.call_reader import CallReader
from mldebug_agents.watch.wait_sampler import SECONDS, SampleOrder, WaitSampler

STRETCHES = int(os.environ.get("MLDEBUG_BENCH_STRETCHES", "16"))
CHOSEN = os.environ.get("MLDEBUG_BENCH_CASES", "healthy;sleep +10 %").split(";")


class RecordedStretch(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recording. `load`: of the machine, in the minute before; `glance`: at the same time as the stretch."""

    case: str
    block: int
    load: float
    stretch: SampledStretch
    glance: Glance = Glance()


def main() -> None:
    """Append the stretches of all rounds to the file."""
    target = Path(sys.argv[1])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stragglers-")))
        if any(name.startswith("slow mount") for name in CHOSEN):
            stack.enter_context(slow_mount(folder))
        job = Job(folder)
        stack.callback(job.end)
        job.behave({})
        job.go_on(20)
        tools = stack.enter_context(open_tools(load_config(None)))
        sampler, calls = WaitSampler(tools.capture), CallReader(tools.context.host)
        for number in range(ROUNDS * len(CHOSEN)):
            name = CHOSEN[number % len(CHOSEN)]
            job.behave(CASES[name].control)
            with quota(job, CASES[name].quota), target.open("ab") as file:
                job.go_on(5)
                jobs = [
                    one for one in tools.capture.finder.find().jobs if one.name == job.script.name
                ]
                for _ in range(STRETCHES):
                    with ThreadPoolExecutor(1) as beside:
                        glance = beside.submit(calls.glance, jobs[0], SECONDS)
                        taken = sampler.take(SampleOrder(jobs[0]))
                    line = RecordedStretch(
                        case=name, block=number, load=os.getloadavg()[0], stretch=taken, glance=glance.result()
                    )  # fmt: skip
                    file.write(msgspec.json.encode(line) + b"\n")
            print(time.strftime("%H:%M:%S"), name, f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
