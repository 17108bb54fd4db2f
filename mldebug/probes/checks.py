"""Whether a node is fit to train: a check for each thing that was measured, a verdict, and a reason for the scheduler.

Pure.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from mldebug.core.model import ReportData
from mldebug.probes.baselines import Baselines
from mldebug.probes.pairs import rate_words

CheckState = Literal["fine", "failed", "skipped"]
SPREAD = {"matmul": 0.05, "device_to_device": 0.1, "host_to_device": 0.2, "device_to_host": 0.2}
"""How far a GPU may stay below the median of its model on this node; ways to the host differ by socket."""
LONGEST_REASON = 100


class NodeCheck(ReportData, frozen=True, kw_only=True):
    """The result of one check of a node.

    `figures`: what was measured, by GPU ("GPU 0"): FLOP/s for matmul, else bytes/s.

    `seconds`: how long the check took.
    """

    stage: str
    state: CheckState
    sentence: str
    seconds: float = 0.0
    figures: dict[str, float] = {}


class Acceptance(ReportData, frozen=True, kw_only=True):
    """The verdict on a node, with all its checks."""

    node: str
    fit: bool
    verdict: str
    drain_reason: str  # "" where it is fit
    checks: tuple[NodeCheck, ...]


def accept(node: str, checks: Sequence[NodeCheck], cut: str = "") -> Acceptance:
    """The verdict on a node: fit where no check failed and all were made.

    `cut`: why not all checks were made ("": all were). Then the node is not fit, but that is no
    reason to drain it.
    """
    failed = [check for check in checks if check.state == "failed"]
    fine = [one.stage for one in checks if one.state == "fine"]
    skipped = list(dict.fromkeys(one.stage for one in checks if one.state == "skipped"))
    if failed:
        verdict = f"unfit: {failed[0].sentence}" + _more(len(failed))
    elif cut:
        verdict = f"not all was checked: {cut}"
    else:
        words = ", ".join(dict.fromkeys(fine)) or "nothing"
        verdict = f"fit: checked {words}" + (f"; skipped {', '.join(skipped)}" if skipped else "")
    return Acceptance(
        node=node,
        fit=not failed and not cut,
        verdict=verdict,
        drain_reason=drain_reason(failed),
        checks=tuple(checks),
    )


def drain_reason(failed: Sequence[NodeCheck]) -> str:
    """The reason to drain a node, for `scontrol update reason=`: one line of at most 100 characters without quotes; "" where no check failed."""
    if not failed:
        return ""
    more = _more(len(failed))
    text = f"mldebug: {failed[0].sentence}"
    plain = "".join(sign for sign in text if sign.isprintable() and sign not in "\"'`$\\")
    room = LONGEST_REASON - len(more)
    return (plain if len(plain) <= room else plain[: room - 1] + "…") + more


def _more(failed: int) -> str:
    return f" (+{failed - 1} more)" if failed > 1 else ""


def below_others(rates: Mapping[str, float], models: Mapping[str, str], least: float) -> list[str]:
    """A sentence for each GPU whose rate is below the median of the GPUs of its model by the share `least` or more (0.05: 5 %).

    `rates` and `models`: by GPU.
    """
    found = []
    for model in sorted({models[who] for who in rates}):
        some = {who: value for who, value in rates.items() if models[who] == model}
        middle = statistics.median(some.values())
        for who, value in some.items():
            if len(some) > 1 and value <= (1 - least) * middle:
                found.append(
                    f"{who} is {1 - value / middle:.0%} below the median of its neighbours"
                )
    return found


def rates_check(
    stage: str,
    figure: str,
    rates: Mapping[str, float],
    models: Mapping[str, str],
    baselines: Baselines,
    seconds: float = 0.0,
) -> NodeCheck:
    """The check of one figure (such as `matmul`) of all GPUs of a node: against each other (`SPREAD`), and against
    published figures (`baselines`). `rates` and `models`: by GPU; `seconds`: how long the measurement took.
    """
    wrong = below_others(rates, models, SPREAD[figure])
    published = "matmul_bf16" if figure == "matmul" else figure
    for who, value in rates.items():
        limit = baselines.limit(models[who], published)
        if limit is not None and value < limit[0]:
            wrong.append(f"{who} has {amount(figure, value)}, at least {amount(figure, limit[0])} are expected")  # fmt: skip
    words = figure.replace("_", " ")
    slowest = min(rates, key=lambda who: rates[who])
    beside = baselines.comparison(models[slowest], published, rates[slowest])
    fine = f"{words}: {amount(figure, rates[slowest])} or more" + (f", {beside}" if beside else "")
    return NodeCheck(
        stage=stage,
        state="failed" if wrong else "fine",
        sentence=f"{words}: {'; '.join(wrong)}" if wrong else fine,
        seconds=seconds,
        figures=dict(rates),
    )


def fp8_check(
    rates: Mapping[str, float],
    models: Mapping[str, str],
    baselines: Baselines,
    seconds: float = 0.0,
) -> NodeCheck:
    """What the GPUs reach with 8-bit floats (FLOP/s, by GPU), beside what was published. It is told, and never held against a node."""
    slowest = min(rates, key=lambda who: rates[who])
    beside = baselines.comparison(models[slowest], "matmul_fp8", rates[slowest])
    words = f"fp8: {amount('matmul', rates[slowest])} or more"
    sentence = f"{words}, {beside}" if beside else words
    return NodeCheck(stage="fp8", state="fine", sentence=sentence, seconds=seconds, figures=dict(rates))  # fmt: skip


def amount(figure: str, value: float) -> str:
    """A rate in words: `780 TFLOPS` for the figure matmul (`value` in FLOP/s), else `52 GB/s` (bytes/s)."""
    if figure != "matmul":
        return rate_words(value)
    tera = value / 1e12
    return f"{tera:,.0f} TFLOPS" if tera >= 1000 else f"{tera:.3g} TFLOPS"
