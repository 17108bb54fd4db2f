"""What the agent costs while nothing happens: CPU and memory with 8 and 64 ranks of 60 threads each, among 200 others.

As root it runs in a pid namespace of its own, so that nothing else on the machine is watched too.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.alone import alone
from bench.table import Row, show
from mldebug.config.schema import AgentConfig, Config
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.jobs.ranks.registry import SETTLING
from mldebug_agents.watch.watch import Watch
from shared.system.hung import wait_until

THREADS = 60
OTHERS = 200
LOOKS = 8
SECONDS = float(os.environ.get("MLDEBUG_BENCH_AGENT_SECONDS", "30"))
INTERVAL = 5.0
YOUNG = SETTLING  # seconds after which the processes of a node are no news any more

RANK = """
import os, sys, threading, time
threading.stack_size(65536)
for _ in range(int(sys.argv[1]) - 1): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
step = 0
while True:
    step += 1
    if os.environ["RANK"] == "0": print(f"step {step} loss {1 / step}", flush=True)
    time.sleep(1)
"""
CROWD = "import os, sys, time\nfor _ in range(int(sys.argv[1])):\n    os.fork() or time.sleep(3600)\ntime.sleep(3600)"


@contextmanager
def node(ranks: int, folder: Path) -> Iterator[None]:
    """One job of `ranks` rank processes that log to one file, and a crowd of other processes."""
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    log = folder / f"train-{ranks}.log"
    with ExitStack() as stack, log.open("wb") as output:
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, str(OTHERS)], start_new_session=True)
        stack.callback(crowd.wait)
        stack.callback(lambda: os.killpg(crowd.pid, 9))
        started = []
        for rank in range(ranks):
            names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": "29998"}
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(THREADS)],
                    env={**os.environ, **world, **names},
                    stdout=output,
                    stderr=subprocess.PIPE,  # as torchrun's ranks; we are its reader
                )
            )
            stack.callback(started[-1].wait)
            stack.callback(started[-1].kill)
        for one in started:
            wait_until(lambda pid=one.pid: psutil.Process(pid).num_threads() == THREADS, 120)
        wait_until(lambda: len(psutil.Process(crowd.pid).children()) == OTHERS)
        yield


def look_rows(ranks: int, state: Path) -> Iterator[Row]:
    """CPU of one look, that of the reader child included."""
    with open_tools(Config(agent=AgentConfig(state_dir=state))) as tools:
        watch = Watch(tools.capture)
        for _ in range(3):
            watch.look()
        family = psutil.Process()
        costs, seconds = [], []
        for _ in range(LOOKS):
            began, cpu = time.perf_counter(), _cpu(family)
            look = watch.look()
            costs.append(_cpu(family) - cpu)
            seconds.append(time.perf_counter() - began)
            time.sleep(0.3)
        steps = [job.step for job in look.jobs if len(job.job.ranks) == ranks]
        assert None not in steps
        assert steps
    cost = 1000 * sum(costs) / LOOKS
    yield row(ranks, "CPU of one look", f"{cost:.1f} ms", "≤ 50 ms", cost <= 50)
    yield Row(f"{ranks} ranks: the slowest look", f"{1000 * max(seconds):.1f} ms")


def row(ranks: int, what: str, measured: str, budget: str, met: bool) -> Row:
    """The budgets are those of 8 ranks."""
    return Row(f"{ranks} ranks: {what}", measured, *((budget, met) if ranks == 8 else ()))


def _cpu(family: psutil.Process) -> float:
    """CPU seconds of this thread and of all children; a clock tick is 10 ms for the children."""
    children = (child.cpu_times() for child in family.children(recursive=True))
    return time.process_time() + sum(one.user + one.system for one in children if one)


def agent_rows(ranks: int, state: Path) -> Iterator[Row]:
    """The real agent, as a process of its own, over some seconds."""
    config = state / "config.yaml"
    config.write_text(f"agent: {{state_dir: {state}/state-{ranks}, listen: ''}}\n")
    argv = [sys.executable, "-m", "mldebug", "agent", "--config", str(config)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any(f"{ranks} ranks found" in line for line in process.stderr)
        agent = psutil.Process(process.pid)
        time.sleep(3)
        family = [agent, *agent.children(recursive=True)]
        young = _busy(family, YOUNG)
        ratio = _busy(family, SECONDS)
        own = agent.memory_info().rss
        everyone = sum(one.memory_full_info().pss for one in family)
        rss = sum(one.memory_info().rss for one in family)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    text = f"{100 * young:.2f} % of a core"
    yield Row(f"{ranks} ranks: agent, CPU, while all {OTHERS} others are new too", text)
    busy, own, everyone, rss = 100 * ratio, own / 2**20, everyone / 2**20, rss / 2**20
    yield row(ranks, "agent, CPU", f"{busy:.2f} % of a core", "≤ 1 %", busy <= 1)
    yield row(ranks, "agent, RSS", f"{own:.0f} MiB", "≤ 64 MiB", own <= 64)
    text = f"{everyone:.0f} MiB ({rss:.0f})"
    yield row(ranks, "agent and its children, PSS (RSS added up)", text, "≤ 80 MiB", everyone <= 80)


def _busy(family: list[psutil.Process], seconds: float) -> float:
    """The share of a core that they take together."""
    cpu, began = _sum(family), time.monotonic()
    time.sleep(seconds)
    return (_sum(family) - cpu) / (time.monotonic() - began)


def _sum(family: list[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in family)


def rows(counts: list[int]) -> Iterator[Row]:
    """For each number of ranks, one look and the real agent."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks in counts:
            with node(ranks, Path(folder)):
                yield from look_rows(ranks, Path(folder))
                yield from agent_rows(ranks, Path(folder))


def main() -> None:
    """Print the table."""
    title = f"the watch, {THREADS} threads a rank, {OTHERS} other processes, a look each {INTERVAL:.0f} s"
    show(title, rows([int(word) for word in sys.argv[1:]] or [8, 64]))


if __name__ == "__main__":
    alone()
    main()
