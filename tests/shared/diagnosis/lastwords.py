"""The last words of tests/fixtures/field/last_words: one rank fails with them, and it is fixed beforehand whose failure that is.

Each case is played in several ways, for a judge must not depend on them: the others wait until they are ended, or lose their peer; all
lines in one log, with torch's mark or without, or a file for each rank; lines of ranks mixed.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.fieldexits import Dress, Plan, outcome_of

FOLDER = Path(__file__).parents[2] / "fixtures" / "field" / "last_words"
SPEAKER, WORLD = 1, 4
_SITE = "/opt/venv/lib/python3.11"
_OUTER = 'Traceback (most recent call last):\n  File "/job/train.py", line 120, in <module>\n    main()\n'
_FRAMES = {
    "step": '  File "/job/train.py", line 88, in train_step\n    loss = model(batch)\n',
    "raise": '  File "/job/train.py", line 91, in train_step\n    raise {type}({shown})\n',
    "all_reduce": f'  File "{_SITE}/site-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce\n'
    "    work = group.allreduce([tensor], opts)\n",
}
_LOST = (
    _OUTER + _FRAMES["all_reduce"] + "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error"
    " [127.0.0.1]:26017: Connection reset by peer"
)  # fmt: skip
_STEPS = "\n".join(f"step {number} loss 2.0" for number in range(9))


class LastWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank writes before it ends, and whose failure that is."""

    name: str
    fault: Literal["own", "peer", "unclear"]
    source: str
    words: str = ""  # of an exception, with its type
    at: str = "step"  # the innermost frame: of _FRAMES, or file:line:function of Python's library
    line: str = ""  # or that frame's line of source, in the job's own code
    before: str = ""  # what was written before the traceback
    raw: str = ""  # written as it stands, without a traceback
    exit: str = "code 1"  # or `signal N`
    accused: tuple[int, ...] = ()  # ranks whom the words name
    accept: tuple[tuple[int, ...], ...] | None = (
        None  # right at any confidence, where the fault alone does not say it
    )


class Play(NamedTuple):
    """One way in which a case is played."""

    others: str  # wait, lose: what the other ranks do
    log: str  # marked, bare, file
    mixed: bool


PLAYS = tuple(Play(*some) for some in product(("wait", "lose", "one-hangs"), ("marked", "bare", "file"), (False, True)))  # fmt: skip


def all_last_words() -> Iterator[LastWords]:
    """Every case of the folder."""
    for file in sorted(FOLDER.glob("*.yaml")):
        yield from msgspec.yaml.decode(file.read_bytes(), type=list[LastWords])


def text_of(case: LastWords) -> str:
    """What the rank writes last."""
    if not case.words:
        return case.raw
    kind, _, result = case.words.partition("\n")[0].partition(": ")
    frame = _FRAMES["step"].replace("loss = model(batch)", case.line) if case.line else ""
    frame = frame or _FRAMES.get(case.at) or _frame(case.at)
    if case.at == "raise":
        frame = frame.format(type=kind.rpartition(".")[2], shown=repr(result))
    return "\n".join(part for part in (case.before, _OUTER + frame + case.words) if part)


def _frame(at: str) -> str:
    file, line, function = at.split(":")
    return f'  File "{_SITE}/{file}", line {line}, in {function}\n    call(*args)\n'


def plan_of(case: LastWords, play: Play) -> Plan:
    """The steps of all ranks."""
    way, _, number = case.exit.partition(" ")
    end = {"exit" if way == "code" else "signal": int(number)}
    quiet: list[Any] = [_STEPS, {"sleep": 60}]
    losing: list[Any] = [_STEPS, {"sleep": 9}, _LOST, {"exit": 1}]
    others = {"wait": quiet, "lose": losing, "one-hangs": losing}[play.others]
    plan = {str(rank): others for rank in range(WORLD) if rank != SPEAKER}
    if play.others == "one-hangs":
        plan["3"] = quiet
    words = text_of(case)
    return plan | {str(SPEAKER): [_STEPS, *([words] if words else []), {"sleep": 8}, end]}


def outcomes_of(case: LastWords) -> Iterator[tuple[Play, ExitOutcome]]:
    """How each play of a case is judged."""
    for play in PLAYS:
        shuffle = random.Random(7) if play.mixed else None
        yield (
            play,
            outcome_of(
                plan_of(case, play), WORLD, _dress(play), shuffle, file_each=play.log == "file"
            ),
        )


@cache
def known_outcomes(case: LastWords) -> tuple[tuple[Play, ExitOutcome], ...]:
    """The same, once: two tests and the page look at them."""
    return tuple(outcomes_of(case))


def _dress(play: Play) -> Dress:
    def marked(rank: int, line: str) -> str:
        return line if line.startswith(("[rank", "step ")) else f"[rank{rank}]: {line}"

    def bare(rank: int, line: str) -> str:
        return line

    return marked if play.log == "marked" else bare


def verdict_on(case: LastWords, outcome: ExitOutcome) -> str:
    """`right`, `unknown` (nobody, where somebody was to be named), `low` (at low confidence, without proof), `wrong medium` or `wrong high`."""
    found = outcome.finding
    named = tuple(sorted(one.rank for one in found.culprits if one.rank is not None)) if found else ()  # fmt: skip
    if case.accept is not None and named in case.accept:
        return "right"
    own = (SPEAKER,)
    if not named:
        return "unknown" if case.fault == "own" else "right"
    if named == own if case.fault == "own" else set(named) <= set(case.accused):
        return "right"
    if found is None or found.confidence is Confidence.LOW:
        return "low"
    return f"wrong {found.confidence}"
