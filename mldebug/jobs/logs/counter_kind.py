"""What a counter in a log counts, by the words before it: steps of training, an evaluation, or something else.

Something else are the preparation of data (tokenizing, packing, scanning, downloading, loading shards) and the work of other
threads: they go on while the training hangs, or before it begins. Words decide where they stand, not where they are part
of another: a `ParquetWriter` is no iterator, and `constraints` train nobody.
"""

import re
from enum import Enum

_EVALUATION = re.compile(
    r"(?<![a-z])(?:val(?:id(?:at\w{1,4})?)?|eval(?:uat\w{1,5})?|test(?:ing)?|infer(?:ence|ring)|loglikelihood|predict(?:(?:ion|ing)s?|process))(?![a-z])"
    r"|\bclass {1,40}images\b"
)
_TRAINING = re.compile(
    r"(?<![a-z])(?:(?:pre|fine)?-?(?:train|tun)(?:ing|er)?|trainprocess|epochs?|(?:optim\w{0,6}[ _])?steps?|iter(?:ation)?s?|its?|updates?|episodes?|fit(?:ting)?|loss)(?![a-z])"
    r"|^\d{1,6}/\d{1,6} {1,20}[\d.]{1,8}g "  # Ultralytics: epoch and memory
)
_FIRST_WORD = re.compile(r"^(?:[a-z]{1,20}: {1,4})?([a-z]{3,30})\b")
_OF_TRAINING = frozenset(("training", "pretraining", "finetuning", "tuning", "fitting", "learning", "running", "remaining"))  # fmt: skip
_PREPARES = re.compile(
    r"(?<![a-z])(?:map|filter|flatten|tokeni[sz]e|pack|load|download|extract|build|create|preprocess|convert|save|write|fetch|read|cache|index|scan|shuffle|upload|sync(?! loss)|prefetch|compile|warm-?up)(?![a-z0-9])"
    r"|(?<![a-z])(?:data_?sets?|splits?|shards?|files?|weights?|checkpoints?|caches?|cached|index(?:es|ed)|downloads?|tokeni[sz]\w{1,5}|pack(?:ed|er)|prefetch\w{0,4}|texts?|documents?|prompts?|rollouts?)(?![a-z])"
)


class CounterKind(Enum):
    """What a counter in a log counts: steps of training, of an evaluation, or something else."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    OTHER = "other"


def kind_of(description: str) -> CounterKind:
    """What a progress bar or counter with this description counts. One without a description counts training steps."""
    words = description.lower().strip(" :|-")
    if not words:
        return CounterKind.TRAINING
    if prepares(words):
        return CounterKind.OTHER
    if _EVALUATION.search(words):
        return CounterKind.EVALUATION
    return CounterKind.TRAINING if _TRAINING.search(words) else CounterKind.OTHER


def prepares(words: str) -> bool:
    """Whether these words, in lower case, describe the preparation of data or files, or the work of another thread.

    A description that begins with an action (`Packing train dataset`) is preparation, unless that action is training.
    """
    first = _FIRST_WORD.match(words)
    doing = first is not None and first[1].endswith("ing") and first[1] not in _OF_TRAINING
    if doing and first is not None and _EVALUATION.match(first[1]):
        return False
    return doing or _PREPARES.search(words) is not None
