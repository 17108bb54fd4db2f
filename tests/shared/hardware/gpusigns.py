"""The one-second recordings of two H200 (tests/fixtures/h200/signals) as looks of the hang fingerprint.

They can be played as another card's: other power levels, noise, values that cannot be read, a longer time between looks.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mldebug.hardware.gpu.fingerprint import Fingerprint, RunBaselines
from mldebug.hardware.gpu.samples import GpuSign, RankSign
from shared.hardware.recordings import RECORD, phases

FOLDER = Path(__file__).parents[2] / "fixtures" / "h200" / "signals"
RECORDED_IDLE, RECORDED_LIMIT = 78.0, 700.0  # watts


class Moment(NamedTuple):
    """One look and the phase it lies in: "train", "checkpoint", "FAULT sleep", "" before the first."""

    at: float
    phase: str
    into: float  # seconds since the phase began
    signs: tuple[GpuSign, ...]


class SignedMoment(NamedTuple):
    """The same with what the fingerprint says."""

    moment: Moment
    print: Fingerprint

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(one.state.value for one in self.print.gpus)


class Card(NamedTuple):
    """Another card: its power without work and at its limit."""

    idle: float
    limit: float

    def watts(self, recorded: float) -> float:
        """Keep where a power lies between idle and limit."""
        share = (recorded - RECORDED_IDLE) / (RECORDED_LIMIT - RECORDED_IDLE)
        return max(self.idle + share * (self.limit - self.idle), 0.1)


H200 = Card(RECORDED_IDLE, RECORDED_LIMIT)
CARDS = {
    "H200 700 W": H200,
    "L4 72 W, idle at 42 %": Card(30, 72),
    "A100 400 W": Card(55, 400),
    "A100 PCIe 250 W": Card(35, 250),
    "B200 1000 W": Card(140, 1000),
    "idle at 30 %": Card(210, 700),
    "idle at 60 %": Card(420, 700),
}

Change = Callable[[GpuSign], GpuSign]


def moments(
    name: str, *, ranks: bool = True, card: Card = H200, noise: float = 0.0, every: int = 1
) -> Iterator[Moment]:
    """Every `every`-th second of a recording. `ranks`: with what the agent knows of the ranks; `noise`: in watts."""
    chance = random.Random(7)
    rows = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    rows = rows[::every]
    story = phases(name)
    energy = [0.0, 0.0]
    for before, row in itertools.pairwise(rows):
        span = row["t"] - before["t"]
        entered = [one for one in story if one[0] <= row["t"]]
        began, phase = entered[-1] if entered else (rows[0]["t"], "")
        signs = []
        for index, (old, new) in enumerate(zip(before["gpus"], row["gpus"], strict=True)):
            mean = card.watts((new["energy_mj"] - old["energy_mj"]) / 1000 / span)
            energy[index] += (mean + chance.gauss(0, noise)) * span
            signs.append(
                GpuSign(
                    uuid=f"GPU-{index}",
                    index=index,
                    utilization_ratio=new["util"] / 100,
                    memory_utilization_ratio=new["mem_util"] / 100,
                    power_watts=card.watts(new["power_mw"] / 1000) + chance.gauss(0, noise),
                    energy_joules=energy[index],
                    rank=_rank(index, before, row, bool(phase)) if ranks else RankSign(rank=index),
                )
            )
        yield Moment(row["t"], phase, row["t"] - began, tuple(signs))


def _rank(index: int, before: dict[str, Any], row: dict[str, Any], begun: bool) -> RankSign:
    """What the agent reads of a rank: its writes, and whether the job's log (rank 0 writes it) told a step."""

    def written(rank: str) -> int:
        old, new = (one["ranks"].get(rank, {}).get("wchar", 0) for one in (before, row))
        return max(0, new - old)

    logged = written("0")
    return RankSign(
        rank=index,
        stepping=begun and RECORD <= logged < 50 * RECORD,
        written_bytes_per_second=written(str(index)) / (row["t"] - before["t"]),
    )


def played(
    name: str, *, change: Change = lambda sign: sign, levels: RunBaselines | None = None, **how: Any
) -> list[SignedMoment]:
    """A whole recording through the fingerprint; `change` alters each sign, `levels` are of an agent before."""
    memory = levels if levels is not None else RunBaselines()
    results = []
    for moment in moments(name, **how):
        signs = tuple(map(change, moment.signs))
        results.append(SignedMoment(moment, memory.look(moment.at, signs, world_size=2)))
    return results


def without(*fields: str) -> Change:
    """Values that cannot be read."""

    def change(sign: GpuSign) -> GpuSign:
        return msgspec.structs.replace(sign, **dict.fromkeys(fields))

    return change


def during(story: list[SignedMoment], phase: str, *, after: float = 3.0) -> list[SignedMoment]:
    """The looks of one phase, but for its first seconds."""
    found = [one for one in story if one.moment.phase == phase and one.moment.into >= after]
    assert found, phase
    return found
