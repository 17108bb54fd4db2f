"""The sections of the page: each makes Markdown of what one part has found."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpu.tables import cell, table, three

Found = Mapping[str, Any]


def _metrics(data: Found) -> Iterator[str]:
    yield "Two reads of ours around one `nvidia-smi -q -x` (and `nvidia-smi nvlink`). *Same*: equal within the digits that it"
    yield "prints; *between*: it lies between our two reads; *moved*: a value that moves from second to second, off by as much."
    for load, told in data.items():
        yield from ("", f"### {load}", "")
        yield from _counts(told["rows"])
        yield ""
        rows = [one for one in told["rows"] if one["verdict"] in ("moved", "differs", "between", "only theirs")]  # fmt: skip
        yield from table(
            ("GPU", "metric", "ours", "nvidia-smi", "verdict", "off", "why"),
            [_compared(one) for one in rows],
        )
        yield ""
        yield "Power by the energy counter between the two reads, and the average that the driver tells: " + "; ".join(
            f"GPU {index} {cell(one['watts'])} W and {cell(one['average'])} W" for index, one in enumerate(told["energy"])
        ) + "."  # fmt: skip
        yield ""
        alone = {(one["metric"], one["why"]) for one in told["rows"] if one["verdict"] == "only ours"}  # fmt: skip
        yield "Only ours: " + "; ".join(f"`{name}` ({why})" for name, why in sorted(alone)) + "."
        yield f"Not readable: {json.dumps(told['unreadable']) if told['unreadable'] else 'nothing'}."  # fmt: skip


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


def _reads(data: Found) -> Iterator[str]:
    yield "Milliseconds: median (ninth decile, longest). Reads ask one GPU after the other, so eight cost four times two; a look asks one of them for its energy."
    yield ""
    rows = [
        (load, one["what"], one["gpus"], one["rounds"], three(one["wall_ms"]), three(one["cpu_ms"]),
         f"{one['wall_ms_of_8']:.1f} / {one['cpu_ms_of_8']:.1f}", _budget(one))
        for load in ("idle", "training") for one in data.get(load, {}).get("reads", ())
    ]  # fmt: skip
    head = ("load", "read", "GPUs", "reads", "wall", "CPU", "of 8 GPUs, wall / CPU", "budget")
    yield from table(head, rows)
    for load in ("idle", "training"):
        for read, calls in data.get(load, {}).get("dearest", {}).items():
            yield from ("", f"Dearest calls of one {read} read, {load}:", "")
            yield from table(
                ("call", "times", "ms"), [(f"`{name}`", n, f"{ms:.2f}") for name, n, ms in calls]
            )
    if "ways" in data:
        yield from ("", "Ways to ask one GPU, in training, after a pause and at once again:", "")
        yield from table(("way", "wall", "CPU", "again"), [_way(one) for one in data["ways"]])


def _budget(one: Found) -> str:
    if one["what"] == "watch":
        return "met" if one["wall_ms_of_8"] <= 10 else "missed: 10 ms wall"
    return "met" if one["cpu_ms_of_8"] <= 100 else "missed: 100 ms CPU"


def _way(one: Found) -> tuple[object, ...]:
    if "error" in one:
        return (one["way"], one["error"], "", "")
    return (one["way"], three(one["wall"]), three(one["cpu"]), f"{one['again']:.3f}")


def _agent(data: Found) -> Iterator[str]:
    told = data["agent"]
    yield f"A DistributedDataParallel job of two ranks trains, settings as shipped, {told['seconds']} s."  # fmt: skip
    yield ""
    yield from table(
        ("what", "measured"),
        [
            ("CPU of the agent and its children", f"{told['cpu_percent']:.2f} % of a core"),
            ("RSS of the agent itself", f"{told['agent_rss_mib']} MiB"),
            ("PSS of the agent and its children", f"{told['pss_mib']} MiB"),
            ("watch reads, ms wall; CPU", f"{told['watch_read']['count']}: {three(told['watch_read']['wall_ms'])}; {three(told['watch_read']['cpu_ms'])}"),
            ("full reads, ms wall; CPU", f"{told['full_read']['count']}: {three(told['full_read']['wall_ms'])}; {three(told['full_read']['cpu_ms'])}"),
            ("steps of the job", f"{data.get('steps_per_second', '?')} a second"),
            ("what the agent said of the GPUs", "; ".join(data.get("devices", ()))),
            ("sources that failed", "; ".join(data.get("remarks", ())) or "none"),
        ],
    )  # fmt: skip
    yield ""
    rows = [
        (one["pid"], one["nvidia"], f"{one['cpu_percent']:.2f}", one["rss_mib"], one["pss_mib"])
        for one in told["processes"]
    ]
    yield from table(("process", "holds GPUs", "CPU %", "RSS MiB", "PSS MiB"), rows)


def _effect(data: Found) -> Iterator[str]:
    yield f"Blocks with the agent awake and stopped (`tests/bench/effect.py`), it looks each {data.get('look', '?')}: ten times as often as"  # fmt: skip
    yield "shipped, so a user sees less than this. 95 % intervals."
    yield ""
    rows = [(name, _interval(data[key])) for key, name in (("effect", "awake against stopped"), ("noise", "stopped against stopped")) if key in data]  # fmt: skip
    if "effect" in data and "budget_percent" in data:
        met = "met" if data["effect"]["high"] < data["budget_percent"] else "cannot tell"
        met = "missed" if data["effect"]["low"] >= data["budget_percent"] else met
        rows.append((f"less than {data['budget_percent']} %, all of the interval", met))
    if "step_ms" in data:
        rows.append(("a step", f"{data['step_ms']:.2f} ms"))
        rows.append(
            ("CPU of the agent while awake", f"{data['awake_cpu_percent']:.2f} % of a core")
        )
    yield from table(("what", "measured"), rows)


def _interval(one: Found) -> str:
    return f"{one['percent']:+.3f} % ({one['low']:+.3f} … {one['high']:+.3f}), {one['quadruples']} times 4 blocks of {one['block_seconds']:g} s"  # fmt: skip


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


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(f"`{name}`" for name in names[:12]) + more or "none"


def _story(data: Found) -> Iterator[str]:
    told = data["story"]
    rows = [(one["claim"], one["held"], one["saw"]) for one in data.get("claims", ())]
    yield from table(("claim", "held", "seen"), rows)
    yield ""
    yield f"Phases: `{told['plan']}` (seconds). The states are told from utilization, power and memory traffic alone."
    yield ""
    looks = [
        (one["phase"], one["gpu"], ", ".join(f"{state} {count}" for state, count in one["states"].items()),
         one["last"], f"{one['settled_after']} s", f"{one['watts']} W")
        for one in told["phases"]
    ]  # fmt: skip
    yield from table(
        ("phase", "GPU", "looks in each state", "at its end", "since it began", "power"), looks
    )
    yield ""
    for one in told["sentences"]:
        yield f"- {one['phase']}: {cell(one['said'])}"
    yield ""
    if not told["reports"]:
        yield f"**No report came.** The agent's log ends: `{cell(told['log'][-500:])}`"
    for report in told["reports"]:
        ranks = ", ".join(str(one.get("rank")) for one in report["culprits"] or ()) or "nobody"
        yield f"Report {told['seconds_after_timeout']} s after the timeout: **{report['verdict']}** ({report['confidence']}), named: {ranks}. {cell(report['summary'])}"  # fmt: skip
        yield ""
        yield from (f"- {cell(one)}" for one in report["evidence"] or ())
    yield ""
    yield f"Stages before the fault: {', '.join(told['suspected_before'])}. GPU of each rank: {json.dumps(told['joined'])}."  # fmt: skip


def _xid(data: Found) -> Iterator[str]:
    rows = [
        (one["gpu"], one.get("registered", "no"), ", ".join(one.get("kinds", ())) or one.get("error"))
        for one in data.get("registered", ())
    ]  # fmt: skip
    yield from table(("GPU", "registered", "kinds"), rows)
    yield ""
    yield f"Events at the first look: {data.get('events_at_first_watch', '?')}. {data.get('note', '')}."  # fmt: skip


def _release(data: Found) -> Iterator[str]:
    for pid, files in data.get("held", {}).items():
        yield f"- the child (pid {pid}) held {', '.join(f'`{one}`' for one in files)}"
    yield f"- all closed after {cell(data.get('closed_after_ms'))} ms, left open: {json.dumps(data.get('left'))}"  # fmt: skip
    yield f"- a read while released is refused: {cell(data.get('refused'))}; read again after {cell(data.get('read_again_after_s'))} s"  # fmt: skip


def _tests(data: Found) -> Iterator[str]:
    yield f"`tests/processes/test_gpu.py` ended with {data.get('exit', 'no exit code')}:"
    yield ""
    yield from (f"    {line}" for line in data.get("output", ()))


SECTIONS: dict[str, tuple[str, Callable[[Found], Iterator[str]]]] = {
    "metrics": ("Metrics against nvidia-smi", _metrics),
    "reads": ("What the reads cost", _reads),
    "agent": ("What the agent costs", _agent),
    "effect": ("Effect on a training step", _effect),
    "user": ("As an ordinary user", _user),
    "fingerprint": ("Fingerprint: training, evaluation, checkpoint, a rank that sleeps", _story),
    "desync": ("Fingerprint: ranks in different collectives", _story),
    "xid": ("Xids", _xid),
    "release": ("Releasing the GPUs", _release),
    "tests": ("Tests on NCCL jobs", _tests),
}
