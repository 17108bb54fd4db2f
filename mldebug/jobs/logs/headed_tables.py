"""Tables whose column names stand in a line of their own, as `step,loss,lr` above `112,6.47,1e-05`.

CSV and tabs on the console, Markdown, boxes of Rich and tabulate, spaCy's and fastai's columns, scikit-learn's `Iter  Train Loss  Remaining Time`:
what a row tells is decided by the line of names above it. A table counts as training's where one column counts (steps or epochs) and another is
a loss of training or the gradients' norm; a table of evaluations, of parameters, of GPUs or of a schedule has none. Ray Tune's table shows many
trainings at once: its rows tell that one of them went on, and no step.

A row has as many cells as the names, all of them figures. The table ends where a line of as many names comes. Pure.
"""

import re
import zlib
from collections.abc import Mapping, Sequence

from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import LogRecord, whole
from mldebug.jobs.logs.scalars import scalars_of
from mldebug.jobs.logs.step_seconds import seconds_of_step

MAX_ROW = 1000  # characters of a line of names or figures
MOST_COLUMNS = 64
MOST_TRIALS = 256
FORMAT = "tables"

_STEPS = (
    "global_step",
    "trainer/global_step",
    "num_updates",
    "train_step",
    "step",
    "steps",
    "#",
    "iteration",
    "iter",
    "iters",
    "it",
    "update",
    "updates",
    "batch",
)  # the first that a table has counts its steps
_EPOCHS = frozenset(("epoch", "epochs", "ep", "e"))
_PLAIN_NAMES = frozenset(("time", "acc", "accuracy", "lr", "elapsed", "eta", "ppl", "grad_norm", "f1"))  # fmt: skip
_NAME = re.compile(r"[A-Za-z#%@][\w /().%@#:+'-]{0,47}")
_FIGURE = re.compile(
    r"[-+]?(?:\d[\d.,:_/T-]{0,40}(?:[eE][-+]?\d{1,4})?|nan|inf) ?(?:%|[A-Za-z]{1,4}(?:/s(?:ec)?)?)?|[-\u2013\u2014]{1,3}|n/?a|none|no log|",
    re.IGNORECASE,
)
_COUNT = re.compile(r"(?P<step>[\d,_]{1,20})(?: ?/ ?(?P<total>[\d,_]{1,20}))?(?:\.0{1,4})?")
_BAR = re.compile(r"[|\u2502\u2503]")
_GAP = re.compile(r"\s{2,}")
_WORD = re.compile(r"\S+")
_CELL = re.compile(r"\S+(?: \S+)*")
LEAST_PLACED = 3  # figures of a row in which others lack
_NO_NAME = re.compile(r"[ -]+")
_TRIAL = "trial_name"
_RUNS = frozenset(("RUNNING", "TERMINATED", "PAUSED"))


class HeadedTable:
    """The column names of one table, and what its rows tell."""

    def __init__(self, cells: Sequence[str], kind: str, *, logged: bool, starts: Sequence[int] = ()) -> None:  # fmt: skip
        """`cells`: the names of the columns as they stand there; `kind`: what parts them, one of `|`, tab, `,` or a space for columns;
        `logged`: a logger's words stand before each line; `starts`: where each name of columns begins, in characters after the first.
        """
        self._names = names = tuple(_plain_name(cell) for cell in cells)
        self._texts = tuple(_turned(name, cell.lower()) for name, cell in zip(names, cells, strict=True))  # fmt: skip
        self._starts = starts
        self._trials: dict[str, str] = {}
        self._kind = kind
        self._logged = logged
        self._step = next((name for name in _STEPS if name in names), "")
        self._epoch = next((name for name in names if name in _EPOCHS), "")

    def is_same(self, other: "HeadedTable") -> bool:
        """Whether another line has the same names: a table that is printed again."""
        return (self._names, self._kind) == (other._names, other._kind)

    def may_be_row(self, line: str) -> bool:
        """Whether a line is worth a closer look: cheap, for every line below the names."""
        if self._kind == " ":
            return "  " in line or line[-1:].isdigit()
        if self._kind == "|":
            return "|" in line or "\u2502" in line
        return line.count(self._kind) >= len(self._names) - 1

    def ends_at(self, line: str) -> bool:
        """Whether this line has the names of another table, of as many columns."""
        cells = self._cells(line)
        return len(cells) == len(self._names) and sum(bool(one) for one in cells) > 1 and all(not one or _NAME.fullmatch(one) for one in cells)  # fmt: skip

    def row(self, line: str) -> LogRecord | None:
        """What a line without labels tells; None where it is no row of this table."""
        cells = self._cells(line)
        if len(cells) != len(self._names):
            return None
        row = dict(zip(self._names, cells, strict=True))
        if _TRIAL in row:
            return self._of_trial(row)
        if not all(_FIGURE.fullmatch(cell) for cell in cells):
            return None
        return self._of_training(row, cells)

    def _cells(self, line: str) -> Sequence[str]:
        text = strip_logger(line) if self._logged else line.strip()
        if len(text) > MAX_ROW:
            return ()
        if self._kind == " ":
            words = text.split()
            cells = words if len(words) == len(self._names) else _GAP.split(text)
            whole = len(cells) == len(self._names)
            return [_listed(cell) for cell in (cells if whole else self._placed(text))]
        return _parted(text, self._kind)

    def _placed(self, text: str) -> Sequence[str]:
        """The cells of a row of columns that has no figure in some of them (Chainer): each stands right below its name. None where one does not."""
        found = {one.start(): one[0] for one in _WORD.finditer(text)}
        if len(found) < LEAST_PLACED or not found.keys() <= set(self._starts):
            return ()
        return [found.get(start, "-") for start in self._starts]

    def _of_trial(self, row: Mapping[str, str]) -> LogRecord | None:
        """One of several trainings that Ray Tune lists: progress where its row has changed, for the table is printed anew all the time."""
        text, trial = " ".join(row.values()), row[_TRIAL]
        if row.get("status") not in _RUNS or not row.get("iter", "").isdigit():
            return None
        if self._trials.get(trial) == text:
            return None
        if trial in self._trials or len(self._trials) < MOST_TRIALS:
            self._trials[trial] = text
        return LogRecord(mark=zlib.crc32(text.encode()), format=FORMAT)

    def _of_training(self, row: Mapping[str, str], cells: Sequence[str]) -> LogRecord | None:
        count = _COUNT.fullmatch(row[self._step or self._epoch])
        if count is None:
            return None
        named = [f"{name}: {cell.lower()}" for name, cell in zip(self._texts, cells, strict=True)]
        text = "; ".join(named)
        timed = "; ".join(one for one in named if "step" in one or "iter" in one)
        loss = training_loss(text) if self._has_one_loss else None
        if not self._step:
            return LogRecord(loss=loss, place=count["step"], mark=zlib.crc32(text.encode()), scalars=scalars_of(text), format=FORMAT)  # fmt: skip
        return LogRecord(
            step=whole(count["step"]),
            total=whole(count["total"]),
            loss=loss,
            step_seconds=seconds_of_step(timed) if timed else None,
            scalars=scalars_of(text),
            place=row.get(self._epoch, ""),
            format=FORMAT,
        )

    @property
    def _has_one_loss(self) -> bool:
        """Whether no more than one part of a model has its loss: of several nobody knows the whole."""
        return sum(name.startswith("loss_") for name in self._names) < 2


def table_below(line: str) -> HeadedTable | None:
    """The table of which this line, without labels, has the column names; None where it is none of training."""
    if len(line) > MAX_ROW:
        return None
    bare = line.strip()
    for text in dict.fromkeys((bare, strip_logger(line))):
        kind = next((sign for sign in "|\t," if sign in text), " ")
        kind = "|" if _BAR.search(text) else kind
        cells = _parted(text, kind) if kind != " " else _columns(text)
        names = tuple(_plain_name(cell) for cell in cells)
        if _is_of_training(cells, names):
            starts = [one.start() for one in _CELL.finditer(text)] if kind == " " else []
            return HeadedTable(
                cells, kind, logged=text != bare, starts=starts if len(starts) == len(cells) else ()
            )
    return None


def _listed(cell: str) -> str:
    """The only figure of a list (DeepXDE's `[6.5e+00]`); of several, or none, nobody knows the whole."""
    inner = cell[1:-1].strip() if cell[:1] == "[" and cell[-1:] == "]" else None
    return cell if inner is None else inner if inner and "," not in inner else "-"


def _parted(text: str, kind: str) -> Sequence[str]:
    if kind == "|":
        inner = text[text[:1] in "|\u2502\u2503" : -1 if text[-1:] in "|\u2502\u2503" else None]
        return [cell.strip() for cell in _BAR.split(inner)]
    return [cell.strip() for cell in text.split(kind)]


def _columns(text: str) -> Sequence[str]:
    """Cells of a line of names that blanks part; with one blank only where every word is a column's usual name."""
    found = _GAP.split(text)
    if len(found) > 1:
        return found
    words = text.split()
    known = all(_plain_name(word) in {*_STEPS, *_EPOCHS, *_PLAIN_NAMES} or "loss" in word.lower() for word in words)  # fmt: skip
    return words if len(words) > 2 and known else ()


def _plain_name(cell: str) -> str:
    return _NO_NAME.sub("_", cell.lower())


def _is_of_training(cells: Sequence[str], names: Sequence[str]) -> bool:
    if not 1 < len(cells) <= MOST_COLUMNS or not all(not one or _NAME.fullmatch(one) for one in cells):  # fmt: skip
        return False
    if names[0] == _TRIAL:
        return "status" in names and "iter" in names
    counts = any(name in _EPOCHS or name in _STEPS for name in names)
    return counts and any(_vouches(name) for name in names)


def _vouches(name: str) -> bool:
    """Whether a column of this name is one of training, and no schedule: its loss, the norm of its gradients."""
    if name in ("grad_norm", "gnorm"):
        return True
    return "loss" in name and training_loss(f"{_turned(name, name)}: 1") is not None


def _turned(name: str, text: str) -> str:
    """`loss_ner`, spaCy's, as others call it: `ner_loss`; any other as it stands there."""
    return f"{name[5:]}_loss" if name.startswith("loss_") else text
