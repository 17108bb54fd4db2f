"""The sections of the page on what the reads and the agent cost."""

from collections.abc import Iterator, Sequence

from gpu.tables import Found, table, three

BUDGET_CPU, BUDGET_RSS, BUDGET_PSS = 1.0, 64, 80  # percent of a core; MiB; MiB with the children
FEW = 10  # of fewer values the ninth decile is the longest


def reads(data: Found) -> Iterator[str]:
    """Both reads, the dearest calls, other ways."""
    yield "Milliseconds: median (ninth decile, longest). Reads ask one GPU after the other, so eight cost four times two, but a look asks one of them for its energy:"
    yield "a look at eight counts as one that asks it, and as long as nine of ten such answers take. The first read is not among the others."
    yield ""
    rows = [
        (load, one["what"], one["gpus"], one["rounds"], three(one["wall_ms"]), three(one["cpu_ms"]),
         _energy(one), _first(one), f"{one['wall_ms_of_8']:.1f} / {one['cpu_ms_of_8']:.1f}", _budget(one))
        for load in ("idle", "training") for one in data.get(load, {}).get("reads", ())
    ]  # fmt: skip
    head = ("load", "read", "GPUs", "reads", "wall", "CPU", "asked the energy", "first", "of 8 GPUs, wall / CPU", "budget")  # fmt: skip
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


def _energy(one: Found) -> str:
    """`25 of 50: 3.10 (4.00, 9.00)`: looks that asked it, and what it alone took."""
    if one["what"] != "watch":
        return ""
    if "asked_energy" not in one:
        return "not noted"
    text = f": {three(one['energy_ms'])}" if one.get("energy_ms") else ""
    return f"{one['asked_energy']} of {one['rounds']}{text}"


def _first(one: Found) -> str:
    return f"{one['first_ms']:.1f}" if one.get("first_ms") is not None else "not noted"


def _budget(one: Found) -> str:
    if one["what"] == "watch":
        if one["wall_ms_of_8"] > 10:
            return "missed: 10 ms wall"
        return (
            "met"
            if "asked_energy" in one
            else "not judged: how many looks asked the energy was not noted"
        )
    return "met" if one["cpu_ms_of_8"] <= 100 else "missed: 100 ms CPU"


def _way(one: Found) -> tuple[object, ...]:
    if "error" in one:
        return (one["way"], one["error"], "", "")
    return (one["way"], three(one["wall"]), three(one["cpu"]), f"{one['again']:.3f}")


def agent(data: Found) -> Iterator[str]:
    """CPU, memory and reads of a minute, against the budget."""
    entry = data["agent"]
    yield f"A DistributedDataParallel job of two ranks trains, settings as shipped, {entry['seconds']} s."  # fmt: skip
    yield ""
    yield from table(
        ("what", "measured"),
        [
            ("CPU of the agent and its children", f"{entry['cpu_percent']:.2f} % of a core"),
            ("RSS of the agent itself", f"{entry['agent_rss_mib']} MiB"),
            ("PSS of the agent and its children", f"{entry['pss_mib']} MiB"),
            ("watch reads, ms wall; CPU", _timed(entry["watch_read"])),
            ("full reads, ms wall; CPU", _timed(entry["full_read"])),
            (f"budget: {BUDGET_CPU:g} % of a core, {BUDGET_RSS} MiB RSS, {BUDGET_PSS} MiB with children", _against(entry)),
            ("steps of the job", f"{data.get('steps_per_second', '?')} a second"),
            ("what the agent said of the GPUs", "; ".join(data.get("devices", ()))),
            ("sources that failed", "; ".join(data.get("remarks", ())) or "none"),
        ],
    )  # fmt: skip
    yield ""
    rows = [
        (one["pid"], one["nvidia"], f"{one['cpu_percent']:.2f}", one["rss_mib"], one["pss_mib"])
        for one in entry["processes"]
    ]
    yield from table(("process", "holds GPUs", "CPU %", "RSS MiB", "PSS MiB"), rows)


def _timed(read: Found) -> str:
    """`12: 1.76 (3.37, 5.56); 1.76 (3.38, 5.55)`: how many, and their milliseconds by the clock and of CPU."""
    wall, cpu = (_of(read["count"], read[name]) for name in ("wall_ms", "cpu_ms"))
    return f"{read['count']}: {wall}; {cpu}"


def _of(count: int, values: Sequence[float]) -> str:
    return three((values[0], values[2], values[2]) if values and count < FEW else values)


def _against(found: Found) -> str:
    """`CPU met, RSS met, PSS missed: 88.9 MiB`."""
    figures = (
        ("CPU", found["cpu_percent"], BUDGET_CPU, "%"),
        ("RSS", found["agent_rss_mib"], BUDGET_RSS, "MiB"),
        ("PSS", found["pss_mib"], BUDGET_PSS, "MiB"),
    )
    return ", ".join(
        f"{name} met" if value <= most else f"{name} missed: {value:g} {unit}"
        for name, value, most, unit in figures
    )


def effect(data: Found) -> Iterator[str]:
    """How much longer a step is beside an agent that is awake."""
    yield f"Blocks with the agent awake and stopped (`tests/bench/effect.py`). Its watch looks come each {data.get('look', '?')}, ten times as often as"  # fmt: skip
    yield "shipped, so a user sees less of those than this; its full reads come as often as shipped. 95 % intervals."
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
