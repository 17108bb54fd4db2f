"""The sections of the page: each makes Markdown of what one part has found."""

import json
from collections.abc import Callable, Iterator, Sequence

from gpu import costs
from gpu.compare import MOVING
from gpu.tables import Found, cell, table


def _metrics(data: Found) -> Iterator[str]:
    yield "Two reads of ours around one `nvidia-smi -q -x` (and `nvidia-smi nvlink`). *Same*: equal within the digits that it"
    yield "prints; *between*: it lies between our two reads; *moved*: a value that moves from second to second, off by as much, and by no"
    yield "more than it may (in base units): " + _allowed() + ". *Differs*: anything else."
    for load, value in data.items():
        yield from ("", f"### {load}", "")
        yield from _counts(value["rows"])
        yield ""
        rows = [one for one in value["rows"] if one["verdict"] in ("moved", "differs", "between", "only theirs")]  # fmt: skip
        yield from table(
            ("GPU", "metric", "ours", "nvidia-smi", "verdict", "off", "why"),
            [_compared(one) for one in rows],
        )
        yield ""
        yield "Power by the energy counter, and the average that the driver tells: " + "; ".join(
            f"GPU {index} {_powers(one, value)}" for index, one in enumerate(value["energy"])
        ) + "."  # fmt: skip
        yield ""
        yield "Only ours: " + "; ".join(_alone(value["rows"])) + "."
        yield f"Not readable: {json.dumps(value['unreadable']) if value['unreadable'] else 'nothing'}."  # fmt: skip


def _allowed() -> str:
    """Each family that moves, and how far."""
    return ", ".join(
        f"`{name}` " + " or ".join([f"{share:.0%}".replace("%", " %")] * (share > 0) + [cell(most)])
        for name, (share, most) in MOVING.items()
    )


def _powers(one: Found, found: Found) -> str:
    """Also of figures whose window was the time between the two reads, by when those ended: they prove nothing."""
    both = f"{cell(one['watts'])} W and {cell(one['average'])} W"
    if "seconds" not in one:
        return (
            f"{both} (over {found['seconds']} s from end to end of two reads: too short to judge)"
        )
    if one["near"] is None:
        return f"{both} (not compared)"
    within = "within" if one["near"] else "**not within**"
    return f"{both} over {cell(one['seconds'])} s ({within} 10 %)"


def _alone(rows: Sequence[Found]) -> Iterator[str]:
    """What nvidia-smi does not tell; of a family that it tells in part, the labels."""
    ours = [one for one in rows if one["verdict"] == "only ours"]
    metrics = {one["metric"] for one in rows if one["verdict"] not in ("only ours", "only theirs")}
    for name, why in sorted({(one["metric"], one["why"]) for one in ours}):
        labels = sorted(
            {one["labels"] for one in ours if (one["metric"], one["why"]) == (name, why)}
        )
        yield f"`{name}`{' ' + ', '.join(labels) if name in metrics else ''} ({why})"


def _counts(rows: Sequence[Found]) -> Iterator[str]:
    """How many values of each verdict, all GPUs together."""
    words = ("same", "between", "moved", "differs", "only ours", "only theirs")
    counts = [sum(one["verdict"] == word for one in rows) for word in words]
    yield from table(("values", *words), [(len(rows), *counts)])


def _compared(row: Found) -> tuple[object, ...]:
    name = f"{row['metric']} {row['labels']}".strip()
    ours = [cell(one) for one in (row["before"], row["after"]) if one not in (None, "")]
    off = f"{row['off']:.1%}".replace("%", " %") if row.get("off") else ""
    both = " … ".join(dict.fromkeys(ours))
    return (row["gpu"], name, both, row["theirs"], row["verdict"], off, row["why"])


def _user(data: Found) -> Iterator[str]:
    yield f"The same reads as uid {data['users'][0]} and as uid {data['users'][1]}."
    yield ""
    rows = [
        (kind, *data[kind]["fields"], _few(data[kind]["only_first"]), _few(data[kind]["only_second"]))
        for kind in ("watch", "full") if kind in data
    ]  # fmt: skip
    head = ("read", "values", "values of the user", "not of the user", "of the user alone")
    yield from table(head, rows)
    yield ""
    yield f"Not readable, with the reason: {json.dumps(data.get('unreadable'))}. Gaps: {json.dumps(data.get('gaps'))}."  # fmt: skip
    yield f"Events: {json.dumps(data.get('events'))}."
    if "deny_writable_code" in data:
        yield ""
        yield f"Where the kernel denies writable code (systemd's MemoryDenyWriteExecute): {_denied(data['deny_writable_code'])}."


def _denied(lines: Sequence[str] | str) -> str:
    if isinstance(lines, str):
        return cell(lines[-400:])
    return f"not read then: {_few(lines)}" if lines else "every value is read, too"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(f"`{name}`" for name in names[:12]) + more or "none"


def _story(data: Found) -> Iterator[str]:
    story = data["story"]
    rows = [(one["claim"], one["held"], one["saw"]) for one in data.get("claims", ())]
    yield from table(("claim", "held", "seen"), rows)
    yield ""
    yield f"Phases: `{story['plan']}` (seconds). The states are told from utilization, power and memory traffic alone."
    yield ""
    looks = [
        (one["phase"], one["gpu"], ", ".join(f"{state} {count}" for state, count in one["states"].items()),
         one["last"], f"{one['settled_after']} s", f"{one['watts']} W")
        for one in story["phases"]
    ]  # fmt: skip
    yield from table(
        ("phase", "GPU", "looks in each state", "at its end", "since it began", "power"), looks
    )
    yield ""
    for one in story["sentences"]:
        yield f"- {one['phase']}: {cell(one['said'])}"
    yield ""
    if "struck_at" not in story:
        yield f"Nothing hangs here. GPU of each rank: {json.dumps(story['joined'])}."
        return
    if not story["reports"]:
        yield f"**No report came.** The agent's log ends: `{cell(story['log'][-500:])}`"
    for report in story["reports"]:
        ranks = ", ".join(str(one.get("rank")) for one in report["culprits"] or ()) or "nobody"
        yield f"Report {story['seconds_after_timeout']} s after the timeout: **{report['verdict']}** ({report['confidence']}), named: {ranks}. {cell(report['summary'])}"  # fmt: skip
        yield ""
        yield from (f"- {cell(one)}" for one in report["evidence"] or ())
    yield ""
    yield f"Stages before the fault: {', '.join(story['suspected_before'])}. GPU of each rank: {json.dumps(story['joined'])}."  # fmt: skip


def _xid(data: Found) -> Iterator[str]:
    rows = [
        (one["gpu"], one.get("registered", "no"), ", ".join(one.get("kinds", ())) or one.get("error"))
        for one in data.get("registered", ())
    ]  # fmt: skip
    yield from table(("GPU", "registered", "kinds"), rows)
    yield ""
    yield f"Events at the first look: {data.get('events_at_first_watch', '?')}. {data.get('note', '')}."  # fmt: skip


def _xid13(data: Found) -> Iterator[str]:
    yield "A kernel of a child of ours writes to an address that nobody has; only where this part is named."
    yield ""
    rows = [(one["claim"], one["held"], one["saw"]) for one in data.get("claims", ())]
    yield from table(("claim", "held", "seen"), rows)
    yield ""
    yield f"The child: {json.dumps(data.get('child'))}. The kernel's log is readable: {cell(data.get('kernel_log'))}."  # fmt: skip


def _release(data: Found) -> Iterator[str]:
    for pid, files in data.get("held", {}).items():
        yield f"- the child (pid {pid}) held {', '.join(f'`{one}`' for one in files)}"
    yield f"- all closed after {cell(data.get('closed_after_ms'))} ms, left open: {json.dumps(data.get('left'))}"  # fmt: skip
    yield f"- a read while released is refused: {cell(data.get('refused'))}; read again after {cell(data.get('read_again_after_s'))} s"  # fmt: skip


def _flight(data: Found) -> Iterator[str]:
    for fault in ("sleep", "broadcast"):
        if fault not in data:
            continue
        entry = data[fault]
        ranks = ", ".join(str(one.get("rank")) for one in entry["culprits"] or ()) or "nobody"
        yield f"`{fault}`: **{entry['verdict']}** ({entry['confidence']}), named: {ranks}. {cell(entry['summary'])}"
        yield ""
        rows = [
            (one["rank"], one["group"], one["backend"], one["members"], one["enqueued"],
             entry["last_collectives"].get(str(one["rank"])))
            for one in entry["records"]
        ]  # fmt: skip
        head = ("rank", "group", "backend", "members", "calls", "last collective in the report")
        yield from table(head, rows)
        yield ""
        yield from (f"- {cell(one)}" for one in entry["evidence"] or ())
        yield ""
    if "training" in data:
        yield "A training that goes on, all ranks asked by `mldebug dump` with all that it does, the recorders full:"
        yield ""
        yield from table(("what", "measured"), [(name.replace("_", " "), json.dumps(one)) for name, one in data["training"].items()])  # fmt: skip


def _hangs(data: Found) -> Iterator[str]:
    yield "Two ranks train a transformer block under DistributedDataParallel; rank 1 is struck. *right*: the verdict, and the rank where one can"
    yield "be told; *right, unnamed*: the verdict, and nobody where a rank was to be named; *unknown*: said so; *WRONG*: anything else."
    yield ""
    rows = [
        (name, f"**{one['result']}**", one.get("verdict"), ", ".join(map(str, one.get("named", ()))) or "nobody", one.get("confidence"),
         _seconds(one), ", ".join(one.get("sources", ())), "; ".join(f"{gpu} {value}" for gpu, value in one.get("gpus", {}).items()))
        for name, one in data.items()
    ]  # fmt: skip
    head = (
        "fault",
        "result",
        "verdict",
        "named",
        "confidence",
        "after the timeout",
        "who speaks, beside stacks",
        "GPUs",
    )
    yield from table(head, rows)
    yield ""
    yield from (
        f"- {name}: {cell(one.get('summary') or one.get('error') or '')}"
        for name, one in data.items()
    )


def _exits(data: Found) -> Iterator[str]:
    yield "Rank 1 of two is struck (`tests/jobs/wrecks.py`), under an agent with a timeout of 15 s. *right*: the verdict, and rank 1; *right,"
    yield "unnamed*: nobody, where of two ranks nobody can be told; *unknown*: nobody, and rank 1 was to be named; *WRONG*: anything else."
    yield ""
    rows = [
        (name, f"**{one['result']}**", one.get("verdict"), ", ".join(map(str, one.get("named", ()))) or "nobody", one.get("confidence"), one.get("seconds"))
        for name, one in data.items()
    ]  # fmt: skip
    yield from table(
        ("fault", "result", "verdict", "named", "confidence", "after the fault, s"), rows
    )
    yield ""
    yield from (f"- {name}: {cell(one.get('summary') or one.get('error') or '')}" for name, one in data.items())  # fmt: skip


def _frameworks(data: Found) -> Iterator[str]:
    yield "Two agents beside two ranks. *Late*: after 60 s with the settings as shipped, after the timeout and 5 s with one."
    yield ""
    fields = ("result", "worried_after_s", "report_after_s", "late_s", "verdict", "named", "confidence", "summary")  # fmt: skip
    rows = [
        (name, agent, *(one.get(field) for field in fields))
        for name, agents in data.items()
        for agent, one in agents.items()
    ]
    yield from table(("framework: fault", "agent", *(field.replace("_", " ") for field in fields)), rows)  # fmt: skip


def _seconds(row: Found) -> str:
    value = row.get("seconds_after_timeout")
    return "" if value is None else f"{value} s"


def _ways(data: Found) -> Iterator[str]:
    yield "A job without the hook, one way open in each row: the debug FIFO, the dump of a timeout of 10 s (*ended*: and the job"
    yield "ends by it), the worker server. *Unharmed*: both ranks stand after all captures as before, no signal pends, nobody traces them. *Steps on*: the"
    yield "fault was taken back, and the job made 20 steps so many seconds later; after a timeout of its own PyTorch does not let a job go on."
    yield ""
    yield from _of_recorders(data)


def _full(data: Found) -> Iterator[str]:
    yield "As above, but the fault came after 400 steps: the recorder of each rank is full, it holds the newest 2,000 of its calls. A report does not wait for such"
    yield "a dump; nobody is asked twice while it is made, and a later capture reads it. *Files*: when PyTorch had written the dump, from the strike on."
    yield ""
    yield from _of_recorders(data)


def _of_recorders(data: Found) -> Iterator[str]:
    rows = [
        (name, f"**{one['result']}**", one.get("verdict"), ", ".join(map(str, one.get("named", ()))) or "nobody", one.get("confidence"), _seconds(one),
         "; ".join(one.get("had_by", ())).replace("Flight Recorder of ", "") or "nobody", "; ".join(f"`{file}` {value}" for file, value in one.get("answers", {}).items()),
         one.get("unharmed"), _on(one.get("steps_on_s")))
        for name, one in data.items()
    ]  # fmt: skip
    head = ("way: fault", "result", "verdict", "named", "confidence", "after the timeout", "Flight Recorder of", "files, after the strike", "unharmed", "steps on, s")  # fmt: skip
    yield from table(head, rows)
    yield ""
    yield from (f"- {name}: {cell(one.get('summary') or one.get('error') or '')}" for name, one in data.items())  # fmt: skip


def _on(number: float | str | None) -> float | str | None:
    """Why a job does not step on is long; that it does not is enough here."""
    return "no" if isinstance(number, str) else number


def _healthy(data: Found) -> Iterator[str]:
    yield f"{data['seconds']} s, {data['steps']} steps, with evaluation on one rank, checkpoints and compilation, beside an agent with the settings as shipped:"
    yield f"**{data['reports']} reports**; the run was always: {', '.join(data['stages'])}."
    yield ""
    cost = data["agent"]
    yield f"The agent and its children took {cost['cpu_percent']} % of a core and {cost['pss_mib']} MiB (PSS) over {cost['seconds']} s."


def _whose(data: Found) -> Iterator[str]:
    yield "Two jobs of one rank, the first on the second card, under an agent with the settings as shipped. The metrics of that agent, joined by"
    yield "`mldebug_gpu_power_watts * on (uuid) group_left (run, rank) mldebug_rank_gpu_info`, beside where each job was put and what nvidia-smi lists:"
    yield ""
    rows = [
        (one["uuid"], one["run"], "; ".join(f"{uuid}: {watts:.0f} W" for uuid, watts in one["joined"].items()) or "nothing",
         ", ".join(one["nvidia_smi"]) or "lists none", ", ".join(f"{size / 2**20:.0f} MiB" for size in one["memory_bytes"]) or "not told", one["right"])
        for one in data["rows"]
    ]  # fmt: skip
    yield from table(("put on", "run", "joined", "nvidia-smi", "memory of the rank", "right"), rows)
    yield ""
    wrong = [*data["troubles"], *data["reports"]]
    yield f"Reported as broken within {data['seconds']} s: {'; '.join(map(cell, wrong)) or 'nothing'}."
    if data["before"]:
        yield f"Told before by the kernel's log of this machine, and not counted: {', '.join(data['before'])}."


def _stepless(data: Found) -> Iterator[str]:
    yield "Jobs that tell no step in any way, untouched. *right*: noticed, and named as it was or nobody where nobody can be; *unnamed*: noticed, and nobody named."
    yield ""
    rows = [
        (name, f"**{one['result']}**", one.get("verdict"), ", ".join(map(str, one.get("named", ()))) or "nobody", one.get("confidence"),
         _seconds(one), "; ".join(f"{gpu} {value}" for gpu, value in one.get("gpus", {}).items()))
        for name, one in data.items()
    ]  # fmt: skip
    head = ("job", "result", "verdict", "named", "confidence", "after the timeout", "GPUs")
    yield from table(head, rows)
    yield ""
    for name, one in data.items():
        entry = one.get("summary") or one.get("error") or "; ".join(one.get("said", ()))
        yield f"- {name}: {cell(entry)}"


def _tests(data: Found) -> Iterator[str]:
    yield f"`tests/processes/hardware/test_gpu.py` ended with {data.get('exit', 'no exit code')}:"
    yield ""
    yield from (f"    {line}" for line in data.get("output", ()))


def _slow(data: Found) -> Iterator[str]:
    yield "Two ranks, of which one becomes slower on its GPU, under an agent with the settings as shipped; it has 180 s to name it."
    yield ""
    fields = ("result", "seconds", "verdict", "named", "confidence", "summary")
    rows = [(name, *(one.get(field) for field in fields)) for name, one in data.items()]
    yield from table(("what slows it", *fields), rows)


SECTIONS: dict[str, tuple[str, Callable[[Found], Iterator[str]]]] = {
    "metrics": ("Metrics against nvidia-smi", _metrics),
    "reads": ("What the reads cost", costs.reads),
    "agent": ("What the agent costs", costs.agent),
    "effect": ("Effect on a training step", costs.effect),
    "user": ("As an ordinary user", _user),
    "fingerprint": ("Fingerprint: training, evaluation, checkpoint, a rank that sleeps", _story),
    "phases": ("Fingerprint: slow batches, arithmetic, a rest, a checkpoint", _story),
    "desync": ("Fingerprint: ranks in different collectives", _story),
    "flight": ("The Flight Recorder of NCCL, on demand", _flight),
    "hangs": ("Hangs of a job that nobody touched", _hangs),
    "exits": ("Ranks that are wrecked", _exits),
    "hooked": ("Hangs again, with the hook, and with the hook where nobody may attach", _hangs),
    "healthy": ("Healthy training", _healthy),
    "whose": ("Whose GPU it is, of two jobs", _whose),
    "stepless": ("Jobs that tell no step", _stepless),
    "ways": ("Flight Recorders without the hook", _ways),
    "full": ("Full Flight Recorders without the hook", _full),
    "frameworks": ("Hangs of frameworks that nobody touched", _frameworks),
    "slow": ("A rank that becomes slower", _slow),
    "xid": ("Xids", _xid),
    "xid13": ("An Xid of an application, made on purpose", _xid13),
    "release": ("Releasing the GPUs", _release),
    "tests": ("Tests on NCCL jobs", _tests),
}
