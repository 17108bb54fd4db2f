"""The ranks of a run on this node as cells of a map and rows of a table: what each does, by letter and colour, culprits marked.

Pure.
"""

from collections.abc import Mapping, Sequence

import msgspec

from mldebug.core.model import Role
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.hardware.health.sentences import GpuName
from mldebug.incidents.report.wording import ROLES
from mldebug.jobs.heartbeat import phase_words, span
from mldebug.status.run_lines import css_class
from mldebug.status.snapshot import RunState

MOST = 2048  # cells, and rows of the table
PHASE = 1.0  # seconds: the wait for the next batch is a phase of each step
TOUCHING = 64  # cells: more of them are smaller
MOVING, UNSEEN = "moving", "unseen"
MEANINGS = {
    MOVING: "its run gives no reason for alarm",
    UNSEEN: "no stack was taken of it since the run is quiet",
}
"""Of what is no `Role`: nobody has classified these ranks."""


class RankCell(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a run, as a cell of the map and a row of the table on the run's page."""

    rank: int
    pid: int | None
    role: str  # a `Role`, or one of `MEANINGS`
    kind: str  # what it does in a word: the class of its stack, its phase
    letter: str
    culprit: bool
    step: str = ""
    gpu: str = ""
    doing: str = ""
    hint: str = ""


class LegendEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the legend below the map of ranks: what a colour and letter mean, and how many ranks have it."""

    role: str
    name: str
    letter: str
    meaning: str
    count: int
    ranks: str


class RankGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The map and the table of a run's ranks, as the page of the run shows them. `cells`: in the order of ranks; `rows`: first those that should be looked at."""

    cells: tuple[RankCell, ...]
    rows: tuple[RankCell, ...]
    legend: tuple[LegendEntry, ...]
    size: str  # CSS class: how small a cell is
    more: int = 0


def grid(run: RunState, gpus: Mapping[str, GpuName] = {}) -> RankGrid:
    """The grid of the run's ranks on this node, ended ones included; `gpus`: what each GPU is called, by uuid."""
    numbers = sorted({*run.ranks, *run.lost, *run.exits})
    most = max((one.step for one in run.hooks.values() if one.step is not None), default=None)
    cells = tuple(_rank(run, rank, most, gpus) for rank in numbers[:MOST])
    rows = sorted(cells, key=lambda one: (not one.culprit, _suspicion(one.role), one.rank))
    return RankGrid(
        cells=cells,
        rows=tuple(rows),
        legend=_legend(cells),
        size="tiny" if len(cells) > 256 else "many" if len(cells) > TOUCHING else "",
        more=len(numbers) - len(cells),
    )


def _rank(run: RunState, rank: int, most: int | None, gpus: Mapping[str, GpuName]) -> RankCell:
    role, kind, doing = _does(run, rank)
    state = run.hooks.get(rank)
    step = state.step if state else None
    behind = f", {most - step:,} behind" if step is not None and most and most - step > 1 else ""
    blame = ", the culprit" if rank in run.culprits else ""
    words = f": {doing}" if doing else ""
    return RankCell(
        rank=rank,
        pid=run.ranks.get(rank),
        role=role,
        kind=kind,
        letter=_letter(role),
        culprit=rank in run.culprits,
        step=f"{step:,}{behind}" if step is not None else "",
        gpu=_gpu(run, rank, gpus),
        doing=doing,
        hint=f"rank {rank}{blame}: {kind}{words}"[:300],
    )


def _does(run: RunState, rank: int) -> tuple[str, str, str]:
    """Role, kind, and the same in more words: an exit, the last stack sample, or what its hook says."""
    if rank not in run.ranks:
        how = clean(run.exits.get(rank, ""), 200)
        return Role.EXITED, "exited", how or "its process is gone; nobody saw how it ended"
    if rank in run.classes:
        role = run.roles.get(rank, Role.UNCLEAR)
        return role, clean(run.classes[rank], 40), clean(run.frames.get(rank, ""), 200)
    hook, name = run.hooks.get(rank), MOVING if css_class(run) == "good" else UNSEEN
    if hook is not None and hook.phase and hook.phase_age >= PHASE:
        return name, clean(hook.phase, 40), clean(phase_words(hook.phase, hook.phase_age), 120)
    if hook is not None and hook.step is not None:
        does = "stepping" if name == MOVING else "between steps"
        return name, does, f"made its last step {span(hook.step_age)} ago"
    return name, "runs" if name == MOVING else "not looked at yet", ""


def _gpu(run: RunState, rank: int, gpus: Mapping[str, GpuName]) -> str:
    uuid = run.gpus.get(rank, "")
    name = f"GPU {gpus[uuid].index}" if uuid in gpus else clean(uuid, 12)
    return f"{name}, perhaps" if name and rank in run.gpus_guessed else name


def _letter(role: str) -> str:
    return "" if role in MEANINGS else ROLES[Role(role)].letter


def _suspicion(role: str) -> int:
    order = [*map(str, ROLES), *MEANINGS]
    return order.index(role)


def _legend(cells: Sequence[RankCell]) -> tuple[LegendEntry, ...]:
    members: dict[tuple[str, str], list[int]] = {}
    for cell in cells:
        members.setdefault((cell.role, cell.kind), []).append(cell.rank)
    order = sorted(members, key=lambda key: (_suspicion(key[0]), -len(members[key]), key[1]))
    return tuple(_kind(role, name, members[role, name]) for role, name in order[:24])


def _kind(role: str, name: str, ranks: list[int]) -> LegendEntry:
    return LegendEntry(
        role=role,
        name=name,
        letter=_letter(role),
        meaning=MEANINGS.get(role) or ROLES[Role(role)].meaning,
        count=len(ranks),
        ranks=shorten_ranks(fold_ranks(ranks), 40),
    )
