"""Phases in which nothing hangs: slow batches, arithmetic that moves no memory, a rest of a minute and more, a checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.claims import sentence_claims, state_claims
from gpu.hanging import walk

PLAN = "train:15,starve:16,train:4,burn:12,train:4,rest:75,train:4,checkpoint:20,train:3"
STATES = {
    (phase, gpu): state
    for phase, state in (
        ("starve", "input_starved"),
        ("burn", "compute_spin"),
        ("rest", "idle"),
        ("train", "training"),
    )
    for gpu in (0, 1)
} | {("checkpoint", 1): "collective_wait"}
WORDS = (
    ("starve", "GPUs 0-1 wait for their next batch"),
    ("rest", "GPUs 0-1 are idle"),
    ("checkpoint", "GPU 0 does nothing while its rank writes a file"),  # checkpointing
)


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One job, no report."""
    result = walk(folder, PLAN)
    yield "story", result
    silent = {"claim": "no report", "held": not result["reports"], "saw": len(result["reports"])}
    yield "claims", [*state_claims(result, STATES), *sentence_claims(result, WORDS), silent]
