"""A job that goes through phases, and may hang, under a real agent: what its GPUs are told to do each second, and the report."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from gpu import world
from mldebug.hardware.gpu.fingerprint import RunBaselines
from mldebug.hardware.gpu.samples import RankSign, sign_of
from mldebug.status.snapshot import RunState, Snapshot
from processes.harness import wait_for
from processes.incidents.watching import Report, RunningAgent

STALL = "{timeout: 15s, busy_timeout: 25s, interval: 1s}"
PATIENT = "{timeout: 300s, busy_timeout: 300s, interval: 1s}"
TIMEOUT = 15.0
POLL = 0.5  # seconds
LATE = 25.0  # seconds after the timeout at which no report comes any more


class WatchRead(msgspec.Struct, frozen=True, kw_only=True):
    """One new watch read: when, the agent's sentence, its stage, and of each GPU by number its state and what that rests on."""

    at: float
    sentence: str
    stage: str
    states: dict[int, str]
    watts: dict[int, float]
    loads: dict[int, str] = {}
    maybe: dict[int, tuple[str, ...]] = {}  # the states that it may have as well


class Eye:
    """Asks the agent again and again, and tells the fingerprint of what it has read by itself as well.

    The states are those of a memory of its own: it knows no steps, no stacks and no writes of a rank, which no snapshot tells,
    only GPUs and which rank has which. So what rests on those (a checkpoint) is claimed of the agent's sentence.
    """

    def __init__(self, agent: RunningAgent, job: world.Job) -> None:
        self.agent = agent
        self.job = job
        self.observed: list[WatchRead] = []
        self._levels = RunBaselines()

    def look(self) -> Snapshot | None:
        """Ask once."""
        snapshot = self.agent.snapshot()
        watch = snapshot.gpu_watch if snapshot else None
        if (
            snapshot is None
            or watch is None
            or (self.observed and self.observed[-1].at >= watch.at)
        ):
            return snapshot
        run = run_of(snapshot, self.job)
        if run is None:
            return snapshot
        signs = [sign_of(one, rank=RankSign(rank=one.index)) for one in watch.gpus]
        reading = self._levels.look(watch.at, signs, run.world_size)
        self.observed.append(
            WatchRead(
                at=watch.at,
                sentence=run.devices,
                stage=run.stage,
                states={one.index: str(one.state) for one in reading.gpus},
                watts={one.index: round(one.power_watts or 0.0, 1) for one in reading.gpus},
                loads={one.index: str(one.load) for one in reading.gpus},
                maybe={one.index: tuple(map(str, one.maybe)) for one in reading.gpus},
            )
        )
        return snapshot


def walk(folder: Path, plan: str, *options: str) -> dict[str, Any]:
    """Run the plan to its end, beside an agent that is patient enough for it; nothing hangs."""
    with (
        world.agent(folder, PATIENT) as agent,
        world.job(folder, "--ddp", "--plan", plan, *options) as job,
    ):
        eye, last = Eye(agent, job), plan.count(",")
        poll(eye, lambda: job.alive() and len(job.phases()) > last, _seconds(plan) + 60)
        poll(eye, lambda: False, _seconds(plan.rpartition(",")[2]))
        return _walked(eye, plan) | {
            "reports": [diagnosis_of(one) for one in reports_of(agent, job)]
        }


def _seconds(plan: str) -> float:
    return sum(float(one.partition(":")[2] or 0) for one in plan.split(","))


def _walked(eye: Eye, plan: str) -> dict[str, Any]:
    marks = eye.job.phases()
    return {
        "plan": plan,
        "phases": phases(eye.observed, marks),
        "sentences": sentences(eye.observed, marks),
        "suspected_before": sorted({one.stage for one in eye.observed}),
        "joined": _joined(eye.agent, eye.job),
    }


def story(folder: Path, plan: str, *options: str) -> dict[str, Any]:
    """Run the plan, whose last phase hangs, until there is a report; `options` of the job."""
    with (
        world.agent(folder, STALL) as agent,
        world.job(folder, "--ddp", "--plan", plan, *options) as job,
    ):
        eye = Eye(agent, job)
        poll(eye, lambda: job.alive() and job.struck_at() is not None, _seconds(plan) + 60)
        struck = job.struck_at() or world.now()
        poll(eye, lambda: bool(reports_of(agent, job)), TIMEOUT + LATE)
        came = world.now()
        poll(eye, lambda: world.now() > came + 3, 10)
        reports, before = reports_of(agent, job), [one for one in eye.observed if one.at < struck]
        return _walked(eye, plan) | {
            "struck_at": struck,
            "reports": [diagnosis_of(one) for one in reports],
            "seconds_after_timeout": round(came - struck - TIMEOUT, 2) if reports else None,
            "suspected_before": sorted({one.stage for one in before}),
            "log": agent.log[-1500:] if not reports else "",
        }


def poll(eye: Eye, until: Any, seconds: float) -> None:
    """Look again and again, until that is so or the time is over."""
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        eye.look()
        time.sleep(POLL)


def run_of(snapshot: Snapshot, job: world.Job) -> RunState | None:
    """What the agent knows of this job."""
    return next((one for one in snapshot.runs if job.pids & set(one.ranks.values())), None)


def reports_of(agent: RunningAgent, job: world.Job) -> list[Report]:
    """What the agent has written of this job."""
    pids = job.pids
    return [one for one in agent.reports() if pids & {rank["pid"] for rank in one["ranks"]}]


def diagnosis_of(report: Report) -> dict[str, Any]:
    """The diagnosis, and the last collective of each rank."""
    diagnosis = report["diagnosis"]
    names = ("verdict", "confidence", "summary", "culprits", "evidence")
    last = {str(one["rank"]): one["last_collective"] for one in report["ranks"]}
    return {name: diagnosis.get(name) for name in names} | {"last_collectives": last}


def _joined(agent: RunningAgent, job: world.Job) -> dict[int, int | None]:
    """The number of each rank's GPU."""
    result = wait_for("a snapshot", agent.snapshot, 10)
    numbers = {one.uuid: one.index for one in result.gpus.gpus} if result.gpus else {}
    run = run_of(result, job)
    return {rank: numbers.get(uuid) for rank, uuid in run.gpus.items()} if run else {}


def phases(reads: Sequence[WatchRead], marks: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """For each phase and GPU how many looks saw which state, and after how many seconds the last state began."""
    found = []
    for (name, begin), (_, end) in pairwise([*marks, ("", float("inf"))]):
        inside = [one for one in reads if begin <= one.at < end]
        for gpu in sorted({number for one in inside for number in one.states}):
            states = [(one.at, one.states[gpu]) for one in inside if gpu in one.states]
            watts = sorted(one.watts[gpu] for one in inside if gpu in one.watts)
            found.append(
                {
                    "phase": name,
                    "gpu": gpu,
                    "states": dict(Counter(state for _, state in states).most_common()),
                    "last": states[-1][1],
                    "settled_after": round(_since(states) - begin, 1),
                    "watts": watts[len(watts) // 2],
                    "load": next(
                        (one.loads[gpu] for one in reversed(inside) if gpu in one.loads), ""
                    ),
                    "maybe": next(
                        (one.maybe[gpu] for one in reversed(inside) if gpu in one.maybe), ()
                    ),
                }
            )
    return found


def _since(states: Sequence[tuple[float, str]]) -> float:
    """When the last state began."""
    last = states[-1][1]
    start = states[-1][0]
    for at, state in reversed(states):
        if state != last:
            break
        start = at
    return start


def sentences(
    reads: Sequence[WatchRead], marks: Sequence[tuple[str, float]]
) -> list[dict[str, str]]:
    """What the agent said last in each phase."""
    found = []
    for (name, begin), (_, end) in pairwise([*marks, ("", float("inf"))]):
        text = [one.sentence for one in reads if begin <= one.at < end and one.sentence]
        if text:
            found.append({"phase": name, "said": text[-1]})
    return found
