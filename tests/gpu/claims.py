"""What is claimed of a job whose GPUs were watched, and whether it held."""

from collections.abc import Mapping, Sequence
from typing import Any


def claims(
    table: Mapping[str, Any], states: Mapping[tuple[str, int], str], named: Sequence[int]
) -> list[dict[str, Any]]:
    """What is claimed of a story, and whether it held: the state of a GPU at the end of a phase, and whom the report names."""
    found, reports = state_claims(table, states), table["reports"]
    ranks = [one.get("rank") for report in reports for one in report["culprits"] or ()]
    found.append({"claim": "one report", "held": len(reports) == 1, "saw": len(reports)})
    wanted = f"the report names {list(named) or 'nobody'}"
    return [*found, {"claim": wanted, "held": bool(reports) and ranks == list(named), "saw": ranks}]


def state_claims(
    table: Mapping[str, Any], states: Mapping[tuple[str, int], str]
) -> list[dict[str, Any]]:
    """The state of a GPU at the end of a phase; of phases of one name the last."""
    last = {(one["phase"], one["gpu"]): one["last"] for one in table["phases"]}
    found = []
    for (phase, gpu), state in states.items():
        saw = last.get((phase, gpu), "not seen")
        claim = f"GPU {gpu} at the end of {phase}: {state}"
        found.append({"claim": claim, "held": saw == state, "saw": saw})
    return found


def sentence_claims(
    table: Mapping[str, Any], words: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """What the agent says at the end of a phase, which knows the ranks' writes and steps, too."""
    by_name = {one["phase"]: one["said"] for one in table["sentences"]}
    return [
        {
            "claim": f"the agent at the end of {phase}: {part}",
            "held": part in by_name.get(phase, ""),
            "saw": by_name.get(phase, "nothing"),
        }
        for phase, part in words
    ]


def load_claims(
    table: Mapping[str, Any], loads: Mapping[tuple[str, int], tuple[str, Sequence[str]]]
) -> list[dict[str, Any]]:
    """The load of a GPU at the end of a phase, and the states that it may have: so that one that tells nothing does not pass."""
    last = {
        (one["phase"], one["gpu"]): (one["load"], list(one["maybe"])) for one in table["phases"]
    }
    found = []
    for (phase, gpu), (load, maybe) in loads.items():
        saw = last.get((phase, gpu), "not seen")
        claim = f"GPU {gpu} at the end of {phase}: {load}, maybe {' or '.join(maybe)}"
        found.append({"claim": claim, "held": saw == (load, list(maybe)), "saw": saw})
    return found
