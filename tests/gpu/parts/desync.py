"""A hang in which both ranks wait in different collectives: rank 0 in all_reduce, rank 1 in a broadcast elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.claims import claims, load_claims
from gpu.hanging import story

PLAN = "train:15,broadcast"
STATES = {
    ("train", 0): "training",
    ("train", 1): "training",
    ("broadcast", 0): "unknown",  # both spin: a collective and an endless kernel look the same
    ("broadcast", 1): "unknown",
}
SPINS = ("spinning", ("collective_wait", "compute_spin"))
LOADS = {("broadcast", 0): SPINS, ("broadcast", 1): SPINS}


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One job, one report."""
    result = story(folder, PLAN)
    yield "story", result
    yield "claims", [*claims(result, STATES, []), *load_claims(result, LOADS)]
