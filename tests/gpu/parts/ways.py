"""Flight Recorders without the hook, on NCCL itself: debug FIFO, dump of a timeout, worker server; each on a few hangs, and what is left of the job.

The ranks are compared before and after: no signal pends, nobody traces them, none is stopped who was not. Where the fault can be taken
back (a rank that sleeps, is stopped, or whose stream is held), it is, and the job has to train on.
"""

import ctypes
import mmap
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu import world
from gpu.hanging import LATE, STALL, Eye, poll, reports_of, run_of
from gpu.hangs import CULPRIT, JOB, OF, gpus_of, judged_row, kept, struck
from gpu.parts.hangs import KEEP
from mldebug.capture.flight_recorder.safe_load import load_plain
from processes.harness import wait_for
from processes.incidents.watching import Report, RunningAgent

ROWS = (
    ("fifo", "sleep"), ("server", "frozen"), ("dump", "sleep"), ("fifo", "off_by_one"), ("server", "off_by_one"), ("dump", "off_by_one"),
    ("fifo", "frozen"), ("server", "sleep"), ("dump", "frozen"), ("fifo", "stop"), ("ended", "sleep"),
)  # fmt: skip
TIMED_OUT = ("dump", "ended")  # after a timeout of its own a job does not train on, whoever looks
ON_CPU = ("sleep", "off_by_one", "stop")
SPAN = float(
    os.environ.get("MLDEBUG_GPU_WAYS", "440")
)  # seconds; no row begins that may take longer
LONGEST = 55.0  # seconds that a row usually takes at most
SHORT = "10"  # seconds after which a collective has taken too long
LATER = 110.0  # seconds after the first capture until which a dump that comes later is read with one of the next two
SETTLED = 4.0  # seconds after the strike
FREE = 5.0  # seconds for the last look at a stack to end


class Recorder(NamedTuple):
    """How many calls the recorders hold when the fault comes; `more`: of the environment of the job."""

    name: str
    after: int  # steps
    strike: float  # seconds from the start until the fault, at most
    on: float  # seconds for the first steps after the fault was taken back
    more: Mapping[str, str] = {}


FEW = Recorder("few", 30, 90.0, 30.0)  # a dump is soon made


def run(folder: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """The most telling first, as many as the time allows; what fails in one does not keep the others."""
    yield from rows(folder, ROWS, FEW, LONGEST, *options)


def rows(
    folder: Path,
    which: Iterable[tuple[str, str]],
    recorder: Recorder,
    longest: float,
    *options: str,
) -> Iterator[tuple[str, Any]]:
    """`longest`: seconds that a row usually takes at most."""
    began = time.monotonic()
    keep = Path(os.environ.get(KEEP, folder))
    for way, fault in which:
        name = f"{way}: {fault}"
        if "--cpu" in options and fault not in ON_CPU:
            continue
        if time.monotonic() - began > SPAN - longest:
            yield name, {"result": "left out", "error": "no time was left"}
            continue
        try:
            result = hung(folder, keep, way, fault, recorder, *options)
        except (AssertionError, OSError, ValueError, KeyError) as error:
            result = {"result": "failed", "error": f"{type(error).__name__}: {error}"[:1500]}
        print(f"{time.monotonic() - began:5.0f} s  {name}: {result}", flush=True)
        yield name, result


def hung(
    folder: Path, keep: Path, way: str, fault: str, recorder: Recorder, *options: str
) -> dict[str, Any]:
    """Start with what opens this way, wait for the report (and the later captures, while a dump may still come), and for what follows."""
    place = Path(tempfile.mkdtemp(dir=folder))
    own, more = opened(way, place)
    own = (*own, "--after", str(recorder.after))
    with (
        world.agent(folder, STALL) as agent,
        world.job(folder, "--fault", fault, *own, *options, script=JOB, more={**more, **recorder.more}) as job,
    ):  # fmt: skip
        wait_for(f"the strike: {job.tail()}", lambda: struck(job), recorder.strike)
        at = job.struck_at() or world.now()
        eye = Eye(agent, job)
        poll(eye, lambda: world.now() > at + SETTLED, SETTLED + 2)
        ranks = ranks_of(agent, job)
        before = {rank: standing(pid) for rank, pid in ranks.items()}
        poll(eye, lambda: bool(reports_of(agent, job)), OF[fault].timeout + LATE)
        came = world.now()
        if way in ("fifo", "dump"):
            poll(eye, lambda: answered(reports_of(agent, job)), LATER)
        read, after = world.now(), let_go(ranks, before)
        found = reports_of(agent, job)
        kept(agent, keep / f"{recorder.name}-{way}-{fault}")
        if not found:
            return {"result": "no report", "log": agent.log[-1500:]}
        result = judged_row(OF[fault], found[-1], came - at)
        if found[-1]["kind"] != "stall":
            result["result"] = f"{result['result']} (the job ended)"
        return result | {
            "had_by": had_by(found[-1]),
            "gpus": gpus_of(eye),
            "captures": len(found[-1]["captures"]),
            "answers": answers(place, at),
            "read_after_s": round(read - at, 1) if had_by(found[-1]) else None,
            "before": before,
            "after": after,
            "unharmed": None
            if way == "ended"
            else all(harmless(before[rank], after[rank]) for rank in ranks),
            "steps_on_s": None if way in TIMED_OUT else steps_on(job, fault, ranks, recorder.on),
        }


# --- ways ------------------------------------------------------------------------------------------


def opened(way: str, place: Path) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Options of the job, and what its environment has to say."""
    dumps = {"TORCH_FR_DUMP_TEMP_FILE": f"{place}/trace_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{place}/trace_"}  # fmt: skip
    if way == "fifo":
        return (), dumps | {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{place}/pipe_"}
    if way == "dump":  # and stay, or there would be nobody to look at
        return ("--timeout", SHORT), dumps | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    if way == "ended":
        return ("--timeout", SHORT), dumps
    return ("--served", str(place)), {}


def answered(found: list[Report]) -> bool:
    """Has a Flight Recorder come, or was everything tried twice, and nobody owes an answer?"""
    return any(had_by(one) or (len(one["captures"]) > 1 and not owed(one)) for one in found)


def owed(report: Report) -> bool:
    """May a dump still come?"""
    return any("it may still come" in one["reason"] for one in report["gaps"])


def had_by(report: Report) -> list[str]:
    """By which ways Flight Recorders came; of a job that has ended what they say."""
    head = "Flight Recorder of" if report["kind"] == "stall" else "Flight Recorder"
    return [one for one in report["diagnosis"]["evidence"] if one.startswith(head)]


def answers(place: Path, at: float) -> dict[str, str]:
    """What lies there: bytes, calls, and how long after the strike it was last written."""
    return {
        one.name: f"{one.stat().st_size} bytes, {calls(one)} calls, after {one.stat().st_mtime - at:.1f} s"
        for one in sorted(place.iterdir())
        if one.is_file()
    }


def calls(dump: Path) -> int | str:
    """How many a whole dump tells of, else why it is none."""
    try:
        result = load_plain(dump.read_bytes())
    except ValueError as error:
        return f"no ({error})"
    return len(result.get("entries", ())) if isinstance(result, dict) else "no"


# --- what is left of the job -----------------------------------------------------------------------


def ranks_of(agent: RunningAgent, job: world.Job) -> dict[int, int]:
    """Rank and pid."""
    result = wait_for("a snapshot", agent.snapshot, 20)
    found = run_of(result, job)
    return dict(found.ranks) if found else {}


def standing(pid: int) -> dict[str, str]:
    """State, pending signals and tracer, as the kernel says; empty where it is gone."""
    names = ("State", "SigPnd", "ShdPnd", "TracerPid")
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    table = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: table.get(name, "").split(" ")[0] for name in names}


def let_go(
    ranks: Mapping[int, int], before: Mapping[int, dict[str, str]]
) -> dict[int, dict[str, str]]:
    """How they stand once whoever looks at a stack of theirs has ended, or when the time for that is over."""
    deadline = time.monotonic() + FREE
    while True:
        after = {rank: standing(pid) for rank, pid in ranks.items()}
        if (
            all(harmless(before[rank], after[rank]) for rank in ranks)
            or time.monotonic() > deadline
        ):
            return after
        time.sleep(0.2)


def harmless(before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether a running rank sleeps at one moment is no harm; to be stopped, traced, or to have a signal waiting is."""
    stopped = [one.get("State") in ("T", "t") for one in (before, after)]
    rest = [{name: one.get(name) for name in ("SigPnd", "ShdPnd", "TracerPid")} for one in (before, after)]  # fmt: skip
    return bool(after) and stopped[0] == stopped[1] and rest[0] == rest[1]


def steps_on(
    job: world.Job, fault: str, ranks: Mapping[int, int], seconds: float
) -> float | str | None:
    """Seconds from the end of the fault until the job steps; None where it cannot be taken back."""
    back = BACK.get(fault)
    if back is None:
        return None
    step, began = job.step, time.monotonic()
    try:
        back(job, ranks[CULPRIT])
        job.wait_for_step(step + 20, seconds)
    except AssertionError as error:
        return f"no: {error}"[:400]
    return round(time.monotonic() - began, 1)


def post(job: world.Job, pid: int) -> None:
    """Let the stream go on that is held."""
    with (job.events / "held").open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        place = ctypes.c_char.from_buffer(mapped)
        ctypes.CDLL(None).sem_post(ctypes.byref(place))
        del place


BACK: dict[str, Callable[[world.Job, int], None]] = {
    "sleep": lambda _, pid: os.kill(pid, signal.SIGUSR1),
    "stop": lambda _, pid: os.kill(pid, signal.SIGCONT),
    "frozen": post,
}
