"""Published figures of GPU models, from `baselines.yaml` beside this file, which names the source of each."""

import re
from collections import Counter
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
    matmul_fp8: PublishedFigure | None = None
    host_to_device: PublishedFigure | None = None
    peer_copy: PublishedFigure | None = None
    all_reduce: PublishedFigure | None = None


class PublishedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network between nodes that have so many `adapters` of so many `gigabits` per second each. In bytes per second: `best`, the
    bandwidth that all_reduce was measured with, or `peak`, what all adapters of a node carry together.
    """

    adapters: int
    gigabits: int
    name: str
    source: str
    best: float | None = None
    peak: float | None = None


class Baselines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures that vendors publish for their GPUs and networks, by model.

    `share`: the part (0 to 1) of a `best` figure that a GPU must reach.
    """

    share: float
    models: tuple[ModelBaselines, ...]
    networks: tuple[PublishedNetwork, ...] = ()

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

    def between_nodes(self, gigabits: Sequence[float], speed: float) -> str:
        """The bus bandwidth of an all_reduce over several nodes (bytes per second) beside what was published for their network; ""
        where nothing was. `gigabits`: of each active adapter of a node; those that carry most together count.
        """
        rates = Counter(gigabits)
        if not rates:
            return ""
        fastest = max(rates, key=lambda one: one * rates[one])
        for one in self.networks:
            if (one.adapters, one.gigabits) == (rates[fastest], fastest):
                what = f"{one.adapters} x {one.gigabits} Gb/s"
                if one.best is not None:
                    return f"{speed / one.best:.0%} of what {what} do elsewhere ({one.name}: {one.source})"
                usual = f"80% are usual from 4 GB on ({one.name}: {one.source})"
                return f"{speed / (one.peak or 1.0):.0%} of what {what} carry, {usual}"
        return ""

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


LEAST_BYTES = 1 << 30  # of a payload: a smaller one measures the start, too


def beside_others(
    gpu: str, results: Sequence[CollectiveResult], gigabits: Sequence[float] | None = None
) -> str:
    """The all_reduce with the largest payload on GPUs beside the published figure, as a line; "" where none was published, or no
    payload was large enough. `gpu`: the driver's name of the model, "" on CPUs; `gigabits`: of each network adapter of a node, where
    the GPUs are those of several nodes.
    """
    large = [one for one in results if one.op == "all_reduce" and one.bytes >= LEAST_BYTES]
    if not gpu or not large:
        return ""
    one = max(large, key=lambda found: found.bytes)
    speed = one.busbw_bytes_per_second
    if gigabits is None:
        words, where = shipped().comparison(gpu, "all_reduce", speed, one.ranks), ""
    else:
        words, where = shipped().between_nodes(gigabits, speed), " between nodes"
    return f"all_reduce{where}: {speed / 1e9:.4g} GB/s, {words}" if words else ""
