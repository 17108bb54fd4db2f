"""Published figures of GPU models, from `baselines.yaml` beside this file, which names the source of each."""

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

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
        for model in self.models:
            found: PublishedFigure | None = getattr(model, figure, None)
            if re.search(model.match, name) and found is not None and found.gpus in (0, gpus):
                if found.least is not None:
                    return found.least, found.source
                return self.share * (found.best or 0.0), found.source
        return None


def shipped() -> Baselines:
    """The baselines that come with mldebug."""
    content: Any = yaml.safe_load(FILE.read_bytes())
    return msgspec.convert(content, Baselines)
