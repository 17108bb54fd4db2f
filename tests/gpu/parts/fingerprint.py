"""Training, evaluation, a checkpoint, and a hang: rank 1 sleeps and rank 0 waits for it in a collective."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.claims import claims, sentence_claims
from gpu.hanging import story

PLAN = "train:18,evaluate:10,train:6,checkpoint:10,train:6,sleep"
STATES = {
    ("train", 0): "training",
    ("train", 1): "training",
    ("evaluate", 0): "training",
    ("evaluate", 1): "training",
    ("checkpoint", 1): "collective_wait",
    ("sleep", 0): "collective_wait",
    ("sleep", 1): "never_arrived",
}
WORDS = (("checkpoint", "GPU 0 does nothing while its rank writes a file"),)  # checkpointing


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One job, one report."""
    result = story(folder, PLAN)
    yield "story", result
    yield "claims", [*claims(result, STATES, [1]), *sentence_claims(result, WORDS)]
