"""Turns the results of the stages of `mldebug probe node` into checks.

Pure. Results are by label (GPU), as `probes/inside/node.py` gives them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mldebug.probes.baselines import Baselines
from mldebug.probes.checks import NodeCheck, fp8_check, rates_check
from mldebug.probes.isolate import isolate
from mldebug.probes.pairs import Trial, rate_words

Results = Mapping[str, Mapping[str, Any]]
FREE = 0.9  # of a GPU's memory that must be free while nobody computes on it
_WORDS = {"late": "did not end in time", "died": "ended its process"}


def stage_checks(
    stage: str, results: Results, seconds: float, models: Mapping[str, str], baselines: Baselines
) -> Iterator[NodeCheck]:
    """Yield the checks of one stage of `mldebug probe node`, which took `seconds`. `results` and `models` (the name of each
    GPU's model) are by label, such as `GPU 0`.
    """
    if stage == "fp8":
        yield _fp8(results, seconds, models, baselines)
        return
    broken = [f"{who}: {why}" for who, one in results.items() if (why := _failure(one))]
    wrong = [f"{who}: {why}" for who, one in results.items() if (why := _wrong(stage, one))]
    if broken or wrong:
        text = f"{stage}: {'; '.join([*wrong, *broken])}"
        yield NodeCheck(stage=stage, state="failed", sentence=text, seconds=seconds)
    measured = {who: one for who, one in results.items() if not _failure(one)}
    if measured:
        yield from _FIGURES[stage](measured, seconds, models, baselines, not (broken or wrong))


def _fp8(
    results: Results, seconds: float, models: Mapping[str, str], baselines: Baselines
) -> NodeCheck:
    """What GPUs do with 8-bit floats; whatever goes wrong with it is no finding: many GPUs and PyTorchs have none."""
    rates = {who: one["flops"] for who, one in results.items() if "flops" in one}
    if rates:
        return fp8_check(rates, models, baselines, seconds)
    why = next((_failure(one) for one in results.values()), "nothing was measured")
    return NodeCheck(stage="fp8", state="skipped", sentence=f"fp8: {why}", seconds=seconds)


def _failure(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    return next((words for key, words in _WORDS.items() if key in result), "")


def _wrong(stage: str, result: Mapping[str, Any]) -> str:
    """Wrong values that were computed or copied, in words; "" where there are none."""
    if result.get("wrong"):
        return f"{result['wrong']} wrong {'products' if stage == 'matmul' else 'bytes'}"
    if result.get("differing"):
        return f"{result['differing']} products differ from the first one"
    return ""


def _memory(
    measured: Results, seconds: float, models: Mapping[str, str], _: Baselines, whole: bool
) -> Iterator[NodeCheck]:
    held = [
        f"{who}: {(one['total'] - one['free']) / 2**30:.1f} of {one['total'] / 2**30:.1f} GiB are taken already"
        for who, one in measured.items()
        if one["free"] < FREE * one["total"]
    ]
    if held:
        yield NodeCheck(stage="memory", state="failed", sentence=f"memory: {'; '.join(held)}", seconds=seconds)  # fmt: skip
    elif whole:
        least = min(one["taken"] for one in measured.values())
        sentence = f"memory: {least / 2**30:.0f} GiB or more written and read back"
        figures = {who: float(one["taken"]) for who, one in measured.items()}
        yield NodeCheck(stage="memory", state="fine", sentence=sentence, seconds=seconds, figures=figures)  # fmt: skip


def _matmul(
    measured: Results, seconds: float, models: Mapping[str, str], baselines: Baselines, _: bool
) -> Iterator[NodeCheck]:
    yield from _unequal(measured, models)
    rates = {who: one["flops"] for who, one in measured.items()}
    yield rates_check("matmul", "matmul", rates, models, baselines, seconds)


def _unequal(measured: Results, models: Mapping[str, str]) -> Iterator[NodeCheck]:
    """A failed check where GPUs have another product than most: the right one is the same on all."""
    sums = [one["checksum"] for one in measured.values()]
    common = max(set(sums), key=sums.count)
    if 2 * sums.count(common) > len(sums) > sums.count(common):
        odd = [who for who, one in measured.items() if one["checksum"] != common]
        sentence = f"matmul: {', '.join(odd)} has another product than the others"
        yield NodeCheck(stage="matmul", state="failed", sentence=sentence)
    elif sums.count(common) < len(sums):
        yield NodeCheck(
            stage="matmul", state="failed", sentence="matmul: the GPUs have different products"
        )


def _copy(
    measured: Results, seconds: float, models: Mapping[str, str], baselines: Baselines, _: bool
) -> Iterator[NodeCheck]:
    for figure in ("host_to_device", "device_to_host", "device_to_device"):
        rates = {who: one[figure] for who, one in measured.items()}
        yield rates_check("copy", figure, rates, models, baselines, seconds)


def _peers(
    measured: Results, seconds: float, models: Mapping[str, str], baselines: Baselines, whole: bool
) -> Iterator[NodeCheck]:
    pairs = measured["node"]["pairs"]
    trials = [
        Trial(
            members=tuple(f"GPU {gpu}" for gpu in pair["pair"]),
            bandwidth=pair["bandwidth"],
            path=_kind(pair, models),
        )
        for pair in pairs
    ]
    members = sorted({name for one in trials for name in one.members})
    figures = {" - ".join(trial.members): trial.bandwidth or 0.0 for trial in trials}
    answer = isolate(members, trials) if len(members) > 2 else None
    wrong = [f"{' - '.join(culprit.members)}: {culprit.evidence}" for culprit in answer.culprits] if answer else []  # fmt: skip
    wrong += [f"{who} has {rate_words(value)}" for who, value in figures.items() if _low(who, value, models, baselines)]  # fmt: skip
    access = sum(one["access"] for one in pairs)
    fine = f"peers: {access} of {len(pairs)} pairs have peer access, {rate_words(min(figures.values()))} or more"
    yield NodeCheck(
        stage="peers",
        state="failed" if wrong else "fine",
        sentence=f"peers: {'; '.join(wrong)}" if wrong else fine,
        seconds=seconds,
        figures=figures,
    )


def _kind(pair: Mapping[str, Any], models: Mapping[str, str]) -> str:
    """The kind of a pair: pairs are compared only where path and models are the same."""
    both = sorted(models.get(f"GPU {gpu}", "") for gpu in pair["pair"])
    return " ".join(("peer" if pair["access"] else "host", *both))


def _low(pair: str, value: float, models: Mapping[str, str], baselines: Baselines) -> bool:
    limit = baselines.limit(models.get(pair.partition(" - ")[0], ""), "peer_copy")
    return limit is not None and value < limit[0]


def _host(stage: str) -> Callable[..., Iterator[NodeCheck]]:
    def check(
        measured: Results, seconds: float, models: Mapping[str, str], _: Baselines, whole: bool
    ) -> Iterator[NodeCheck]:
        speed = measured["node"]["bandwidth"]
        how = "" if measured["node"].get("direct", True) else ", through the page cache and synced"
        if whole:
            sentence = f"{stage}: {rate_words(speed)}{how}"
            yield NodeCheck(stage=stage, state="fine", sentence=sentence, seconds=seconds, figures={"node": speed})  # fmt: skip

    return check


_FIGURES: dict[str, Callable[..., Iterator[NodeCheck]]] = {
    "memory": _memory,
    "matmul": _matmul,
    "copy": _copy,
    "peers": _peers,
    "dram": _host("dram"),
    "disk": _host("disk"),
}
