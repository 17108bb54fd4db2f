"""How much later one user's stall is named because of another user: 3,000 false ranks, 5,000 threads, a flood of stalls, giant reports.

    python tests/bench/fair_shares.py [FALSE_RANKS [THREADS]]

In pairs: an agent without the flood, then one with it, each with a stall of its own; the median of the differences counts. As root.
"""

import os
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.alone import alone
from bench.table import Row, show
from processes.agent.light import LightJob, light_job
from processes.capture.flood import (
    as_user,
    false_ranks,
    giant_reports,
    now,
    stalls,
    verdict_after,
)
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent, settings, watching

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_FAIR_ROUNDS", "5"))
VICTIM, FLOODER = 62_001, 62_002
STALL = "{timeout: 10s, interval: 1s}"
BUDGET = 2.0
PATIENCE = 180.0


def is_watched(agent: RunningAgent, job: LightJob) -> bool:
    """Whether the agent has seen it step."""
    found, pids = agent.snapshot(), set(job.ranks.values())
    runs = found.runs if found else ()
    return any(pids & set(run.ranks.values()) and run.step for run in runs)


def measure(ranks: int, threads: int) -> float:
    """Seconds from a stall to its report; with no `ranks` the victim is alone."""
    with tempfile.TemporaryDirectory(prefix="mldebug-fair-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o777)
        agent = stack.enter_context(watching(folder, settings(folder, stall=STALL)))
        victim = stack.enter_context(light_job(folder / "victim", prefix=as_user(VICTIM)))
        wait_for("the victim is watched", lambda: is_watched(agent, victim), 60)
        others: list[LightJob] = []
        if ranks:
            stack.enter_context(giant_reports(agent.state, FLOODER))
            stack.enter_context(false_ranks(folder, FLOODER, ranks, threads))
            others = stack.enter_context(stalls(folder, FLOODER))
            wait_for("they are found", lambda: agent.log.count("ranks found") > 100, PATIENCE)
        for job in others:
            job.hang()
        os.kill(victim.ranks[1], signal.SIGSTOP)
        victim.hang()
        return verdict_after(agent.state, VICTIM, now(), PATIENCE)


def main() -> None:
    """Print the table."""
    ranks, threads = (int(word) for word in [*sys.argv[1:], "3000", "5000"][:2])
    pairs = []
    for _ in range(ROUNDS):
        pairs.append((measure(0, 0), measure(ranks, threads)))
        print("without {:.1f} s, with {:.1f} s".format(*pairs[-1]), flush=True)
    quiet, loud = (statistics.median(times) for times in zip(*pairs, strict=True))
    more = statistics.median(later - before for before, later in pairs)
    worst = max(later - before for before, later in pairs)
    rows = [
        Row("stall to report, alone", f"{quiet:.1f} s"),
        Row(f"with {ranks:,} false ranks, {threads:,} threads, stalls and giant reports", f"{loud:.1f} s"),
        Row("median of the differences (largest)", f"{more:+.1f} s ({worst:+.1f})", f"≤ {BUDGET:.0f} s", more <= BUDGET),
    ]  # fmt: skip
    show(f"another user's flood, timeout 10 s; {ROUNDS} pairs", rows)


if __name__ == "__main__":
    alone()
    main()
