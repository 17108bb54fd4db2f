"""Published figures of GPU models, from `baselines.yaml` beside this file, which names the source of each."""

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

FILE = Path(__file__).with_name("baselines.yaml")


class PublishedFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published figure of a GPU model: `best` or `least`, per second. `gpus`: for how many together; 0: for each."""

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
    """All published figures. `share`: the part of a best figure that a GPU must reach."""

    share: float
    models: tuple[ModelBaselines, ...]

    def limit(self, name: str, figure: str, gpus: int = 0) -> tuple[float, str] | None:
        """The value that a GPU of this model must reach in a figure, and the source that published it; None where there is none."""
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
