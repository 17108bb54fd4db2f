"""Which of the losses in a line is the one that training minimizes: `loss` before `lm loss`, that before `pg_loss`.

A loss of an evaluation is none, nor is one that is known as a part of the whole beside it (`kl_loss`, `value_loss`, `mtp_1 loss`).
"""

import re
from functools import lru_cache

from mldebug.jobs.logs.records import NUMBER, number

_LOSS = re.compile(
    rf"loss(?P<tail>/[a-z0-9_/]{{1,40}}|_(?:step|epoch|train(?:ing)?|avg(?:_rank|_slice)?)(?![a-z_])|)(?: is| total| \((?:batch|step|train)\)| train(?:ing)?(?: \(curr\))?)?['\"]?(?:[ :=\t]{{1,8}}| {{0,8}}\| {{1,12}}(?=-?\d{{1,40}}\.\d))['\"]?(?:tensor\(|np\.float\d\d\(|\[(?={NUMBER}\]))?(?P<value>{NUMBER})"
)
_NO_NAME = re.compile(r"[^\w./-]+")
MOST = 44  # characters of a name
_WORD = re.compile(r"[a-z]+")
_ALIKE = str.maketrans("123456789", "000000000")
REMEMBERED = 2048  # texts before a loss
_NOT_OF_TRAINING = frozenset(["val", "valid", "validation", "eval", "evaluation", "test", "dev", "best", "min", "max", "prev", "previous", "last", "init", "initial"])  # fmt: skip
_PART = frozenset(
    [
        "value",
        "vf",
        "kl",
        "entropy",
        "aux",
        "auxiliary",
        "balancing",
        "balance",
        "lb",
        "z",
        "router",
        "critic",
        "mtp",
        "vb",
        "sync",
    ]
)
_BEFORE = re.compile(r"(?:[a-z0-9]{1,20}[ _]{1,3}){1,4}[a-z0-9]{0,20}$")  # the words right before
_EVALUATED = re.compile(r"(?<![\w/-])(?:val(?:id(?:ation)?)?|eval(?:uation)?)\]?[:|] {0,4}$")
_CROSS_ENTROPY = re.compile(r"cross[ _-]entropy[ _-]?$")
_WHOLE = frozenset(["train", "training", "total", "tot", "lm", "avg", "avr", "mean", "running", "tr", "step", "reduced", "smoothed"])  # fmt: skip


def training_loss(text: str) -> float | None:
    """The loss that training minimizes, from a text in lower case; None where no number in it is called a loss."""
    if "loss" not in text:
        return None
    best: int | None = None
    value = None
    for found in _LOSS.finditer(text):
        rank = _rank(text, found)
        if rank is not None and (best is None or rank < best):
            best, value = rank, found["value"]
        if best == 0:
            break
    return number(value)


def _rank(text: str, found: re.Match[str]) -> int | None:
    """Return 0 for the loss itself, 1 for what is known as the whole loss, 2 for a part; None for what is not training's."""
    before = text[max(0, found.start() - MOST) : found.start()]
    return _rank_behind(before.translate(_ALIKE), found["tail"])


@lru_cache(REMEMBERED)
def _rank_behind(before: str, tail: str) -> int | None:
    """The rank of a loss by the text before it, whose digits are all 0: no other digit makes a difference, and lines of one log differ in
    these alone. `tail`: what stands right behind the word.
    """
    path, name = _name(before)
    if "val" in before and _EVALUATED.search(before):
        return None
    if not (path or name or tail):
        return 0
    words = {*_WORD.findall(name), *_WORD.findall(tail)}
    phrase = _BEFORE.search(before)
    around = set(_WORD.findall(phrase[0]) if phrase else ())
    if "cross" in before and _CROSS_ENTROPY.search(before):  # that is no bonus of a policy
        words, around = words - {"entropy"}, around - {"entropy"}
    if not _NOT_OF_TRAINING.isdisjoint({*words, *around, *_WORD.findall(path)}):
        return None
    if not words:
        return 0
    if not _WHOLE.isdisjoint(words):
        return 1
    return None if not _PART.isdisjoint({*words, *around}) else 2


def _name(before: str) -> tuple[str, str]:
    """Split what stands before the word: `actor/pg_` into path and name, `lm ` into a name; a number or a sign is none."""
    if before.endswith(" "):
        word = before[:-1].rpartition(" ")[2]
        return "", word if word[:1].isalpha() and word.replace("_", "").isalnum() else ""
    path, _, name = _NO_NAME.split(before)[-1].rpartition("/")
    return path, name
