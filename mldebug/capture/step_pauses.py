"""Whether a rank stands in code in which its run makes no step although nothing is wrong: an evaluation, or a checkpoint.

The gaps between a run's steps say nothing about how long such a pause takes. It may show no movement for a while: rank 0 waits for
storage, for an upload in another thread, for a server that computes the metrics, and the others wait for rank 0.
"""

import functools
import re

_FRAME = re.compile(r"^(\S+) \(([^()\n]*?)(?::\d+)?\)$", re.MULTILINE)  # `evaluate (train.py:30)`
_FUNCTION = re.compile(
    r"_*(?:(?:run|do|on|maybe|call|async|dist|the|my|log)_)*"
    r"(?:eval|evaluate|evaluation|validate|validation|val_(?:step|loop|epoch)|predict(?:ion)?_(?:step|loop|epoch)|compute_metrics"
    r"|inference_on_dataset|save(?!_for_|_on_)|dump_checkpoint|write_checkpoint|serialize_checkpoint|checkpoint_save)(?:_\w*)?"
)  # fmt: skip
_TEST = re.compile(r"_*test(?:_(?:step|loop|epoch|model|one_epoch))?")
"""An evaluation, or what a script calls its whole program: that trains further inside."""
_FILE = re.compile(r"(?:^|/)(?:evaluation_loop|prediction_loop|validation_loop|validator)\.py$")
_TRAINS = re.compile(r"train(?!ed)|fit|args|config|kwargs|inputs|hook", re.IGNORECASE)
"""In a name that is no pause: `train_and_evaluate` holds the whole training, `validate_args` checks what it was given."""
_TRAINING = re.compile(r"_*(?:train|fit)(?:ing)?(?:_\w*)?")


def stands_in_pause(frames: str) -> bool:
    """Whether one of the Python frames (`name (file.py:30)`, one a line) is of an evaluation or a checkpoint that is written."""
    return pause_place(frames) != ""


@functools.lru_cache(maxsize=256)  # the ranks of a run mostly stand in the same frames
def pause_place(frames: str) -> str:
    """Of such frames, the innermost of an evaluation or a checkpoint, without its line, and those that called it: the same place of
    the program, whatever is done in it. "" where none is of one.
    """
    trains = False
    for found in _FRAME.finditer(frames):  # the innermost first
        name, file = found.groups()
        if _is_pause(name, file) or (not trains and _TEST.fullmatch(name)):
            return f"{name} ({file}){frames[found.end() :]}"
        trains = trains or _TRAINING.fullmatch(name) is not None
    return ""


def _is_pause(name: str, file: str) -> bool:
    if _TRAINS.search(name):
        return False
    return _FUNCTION.fullmatch(name) is not None or _FILE.search(file) is not None
