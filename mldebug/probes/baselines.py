"""Published figures of GPU models, from `baselines.yaml` beside this file, which names the source of each."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mldebug.probes.collectives import CollectiveResult

FILE = Path(__file__).with_name("baselines.yaml")


class PublishedFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published figure of a GPU model, per second: `best`, or the `least` that is acceptable.

    `gpus`: for how many GPUs together; 0: for any number.
    """

    source: str
    best: float | None = None
    least: float | None = None
    gpus: int = 0


class ModelBaselines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The published figures of one GPU model."""

    match: str
    matmul_bf16: PublishedFigure | None = None
    host_to_device: PublishedFigure | None = None
    peer_copy: PublishedFigure | None = None
    all_reduce: PublishedFigure | None = None


class Baselines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All published figures.

    `share`: the part (0 to 1) of a `best` figure that a GPU must reach.
    """

    share: float
    models: tuple[ModelBaselines, ...]

    def limit(self, name: str, figure: str, gpus: int = 0) -> tuple[float, str] | None:
        """(least value, source) that a GPU with this model name must reach in a figure such as `matmul_bf16`; None where none is published.

        `gpus`: how many take part.
        """
        found = self._published(name, figure, gpus)
        if found is None:
            return None
        least = self.share * (found.best or 0.0) if found.least is None else found.least
        return least, found.source

    def comparison(self, name: str, figure: str, value: float, gpus: int = 0) -> str:
        """A measured value beside the published one, in words: `71 % of what this hardware does elsewhere (source)`; "" where none
        is published. Arguments as in `limit`.
        """
        found = self._published(name, figure, gpus)
        if found is None:
            return ""
        if found.best is not None:
            return f"{value / found.best:.0%} of what this hardware does elsewhere ({found.source})"
        return (
            f"{value / (found.least or 1.0):.0%} of the least that others accept ({found.source})"
        )

    def _published(self, name: str, figure: str, gpus: int) -> PublishedFigure | None:
        for model in self.models:
            found: PublishedFigure | None = getattr(model, figure, None)
            if found is not None and found.gpus in (0, gpus) and re.search(model.match, name):
                return found
        return None


def shipped() -> Baselines:
    """The baselines that come with mldebug."""
    content: Any = yaml.safe_load(FILE.read_bytes())
    return msgspec.convert(content, Baselines)


LEAST_BYTES = (
    1 << 30
)  # of a payload: smaller ones measure the start, too, and published figures do not


def beside_others(gpu: str, results: Sequence[CollectiveResult]) -> str:
    """The all_reduce with the largest payload on the GPUs of one node beside the published figure, as a line; "" where none was
    published, or no payload was large enough. `gpu`: the driver's name of the model.
    """
    large = [one for one in results if one.op == "all_reduce" and one.bytes >= LEAST_BYTES]
    if not gpu or not large:
        return ""
    one = max(large, key=lambda found: found.bytes)
    speed = one.busbw_bytes_per_second
    words = shipped().comparison(gpu, "all_reduce", speed, one.ranks)
    return f"all_reduce: {speed / 1e9:.4g} GB/s, {words}" if words else ""
