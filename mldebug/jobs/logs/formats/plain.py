"""Lines of hand-written loops: `step 12,345 loss 0.5`, `Epoch 3 [120/5000]`, `it 12/100`, `{"step": 12}`.

A word and a number are not enough ("step 1: loading the data"): the line must also have a total, a loss, another named
number, or nothing more to say. Lines of loaders, workers, downloads and heartbeats are no progress.

No list of words knows every thread that counts something. So a record here tells the shape of its line (the words up to
the count) and whether it is bare: a count that no loss, other metric or epoch vouches for, nor a total where the line
says no more than what it counts. Whether that is the
loop's own is decided where the rhythm of the run is known, in `mldebug.stall.log_filters`. The step of an evaluation
("eval step 3/100") is progress without a step, as in the other formats.
"""

import re
import zlib
from typing import NamedTuple

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.evaluation_words import evaluation_count, tells_of_evaluation
from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.lines.settings_lines import lists_settings
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import (
    GROUPED,
    NUMBER,
    WHOLE,
    LogFormat,
    LogRecord,
    epoch,
    number,
    whole,
)
from mldebug.jobs.logs.step_seconds import seconds_of_step
from mldebug.jobs.logs.wordless import wordless_count

MAX_CHARACTERS = 2000

# All patterns see the line in lower case; each begins with a word that a plain search finds fast.
_ANY = re.compile(
    r"step|iter|it\b|epoch|updates?\b|batch|train(?:ing)?:? |\[(?:train|val): |test: |inference done|task/s, |loss|(?:eval|valid)\w{0,6}:? "
)
_COUNT = (
    rf"(?:\(train\))?['\"]?(?P<sign> ?[=:|]|\.(?= \d{{1,15}}/\d)|-(?=\d{{1,15}}(?::|/epoch))|)[ \t]{{0,12}}['\"]?[#\[(]? {{0,12}}(?:(?<=: \[)\d{{1,9}}, |(?<=\[)\d{{1,9}}, {{1,8}}(?=\d{{1,15}}/\d))?(?P<step>{GROUPED})(?![\w.]*[a-z])(?!\.\d|%)"
    rf"(?: {{0,12}}(?:/|of) {{0,12}}(?P<total>{GROUPED}))?"
)
_STEP = re.compile(
    r"(?<!per )(?:(?<![a-z0-9/._])|(?:(?<=val_)|(?<=valid_)|(?<=test_))(?!steps|iters))(?P<word>(?:global|train(?:ing)?|optim\w{0,6}|acc|cur(?:rent)?)[ _]?(?:step|iter(?:ation)?)|current_steps|(?<!fps )steps?(?:_i)?|iteration|iters?|it|(?:train_)?num_updates|nupdates|steps_completed|updates?|(?:mini-?)?batch)"
    + _COUNT
)
_WHOLE_RUN = re.compile(
    r"(?<![a-z0-9._])(?P<word>global[ _]?(?:step|iter(?:ation)?)|total_train_updates)" + _COUNT
)  # beside the count of an epoch
_OF_ALL = re.compile(  # `Epoch 2/10 Step 5/100 Train step 105/1000`
    rf"(?<![a-z0-9._])(?P<word>(?:total|overall|train(?:ing)?)[ _]?(?:step|iter(?:ation)?))[ :=]{{1,3}}(?P<step>{WHOLE})/(?P<total>{WHOLE})"
)
_OPTIMIZER = re.compile(  # right behind a count of micro-steps: `iter 28 | step 7: loss`
    rf"[ |,;:-]{{1,4}}(?P<word>(?:optim\w{{0,6}}[ _])?step)(?P<sign> ?[=:]|) {{0,12}}(?P<step>{GROUPED})(?P<total>)(?![\w.]*[a-z])(?!\.\d|%)"
)
_ITERATION = re.compile(  # right behind a batch of the epoch: `batch: 8280/13617, ite: 1825`
    rf"[ |,;]{{1,4}}(?P<word>ite(?:r(?:ation)?)?)(?P<sign> ?[=:]|) {{0,12}}(?P<step>{GROUPED})(?P<total>)(?![\w.]*[a-z])(?!\.\d|[%/])"
)
_OF_WHOLE_RUN = ("global", "total_train", "num_updates", "train_num_updates")
_MICRO = frozenset(["iter", "iters", "iteration", "it", "batch"])
_OF_WORDLESS = (
    "loss",
    "minibatch[",
    " at iter",
    "between steps",
    "objf",
    " iter, ",
    "on iteration",
    "mean rms",
)
_OF_LOOP = re.compile(
    r"(?:epoch ?\[?\d{1,9}\]?[ ,]{0,2}\[?|epoch {1,8}\d{1,9} \| {0,4}|deepmd info {1,8})$"
)  # before a batch: MXNet, DeePMD
_COARSE = re.compile(  # `step:1.2k`: too coarse to be a step
    r"(?<![a-z0-9/._])(?:global[ _]?)?(?:step|iter|iteration)s?['\"]?[ :=]{1,3}(?P<count>\d{1,6}(?:\.\d{1,3})?[kmb])\b"
)
_NUMBER_FIRST = re.compile(
    rf"^ {{0,12}}(?!\[\d{{1,15}},)\[?(?P<step>{WHOLE})(?:/(?P<total>{WHOLE}))?(?: {{0,4}}(?:[|\t]|,(?!\d{{3}}))|(?(total)(?:\] (?=.{{0,200}}train)|: )|(?!)))"
)  # a table: 107 | loss 6.5 | lr 3e-4, MONAI's 107/900, train_loss: 6.5, or [107/90000] train loss: 6.5: without that word it may be a rank of all
_TRAINING_LOSS = re.compile(r"(?<![a-z])train(?:ing)?(?![a-z])[^|,;]{0,24}?loss")
_MOST_EPOCHS = 10_000
"""Up to so many, `[1/100] train loss` and `1/100: loss` count epochs, as far as anyone has posted; a step of so few is not told."""
_LOSS_ALONE = re.compile(
    rf"train(?:ing)?[_ ]loss(?:/[a-z_/]{{1,40}})? ?[:=]? {{0,4}}{NUMBER}$"
)  # nnU-Net, whose epoch stands in another line; Composer, where it counts tokens
_OF_A_STEP = re.compile(
    r"(?<![a-z])(?:lr(?:_\d)?|learning[_ ]rate|g(?:rad)?[_ ]?norm)['\"]?(?: {0,2}[:=]| ) {0,8}\d"
)  # no evaluation has them: beside a loss they vouch for a line of training without a count
_EPISODE = re.compile(rf"(?<![a-z])episode:? {{0,4}}\[?(?P<step>{WHOLE})/(?P<total>{WHOLE})")
_EPOCH = re.compile(
    rf"\b(?:(?P<named>(?<!per )epoch\b(?:\(train\))?)|train:(?= {{1,4}}\d{{1,9}}(?:/\d{{1,9}} \( {{0,2}}\d{{1,3}}%\))? \[)|train(?:ing)?:?(?= {{1,4}}\[))['\"]?[ :=]{{0,4}}(?:\[?(?(named) {{0,8}})\d{{1,9}}(?:/\d{{1,9}}(?: \( {{0,2}}\d{{1,3}}%\))?)?\]?|(?(named)(?!)|(?=\[)))[ :,|-]{{0,12}}"
    rf"(?:\[ {{0,12}}(?P<step>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total>{GROUPED})(?=[\] (])"
    rf"|(?P<step2>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total2>{GROUPED})"
    rf"|(?<=\d\])\[ {{0,12}}(?P<step4>{WHOLE})\](?=\s))?"  # SwAV: `Epoch: [0][120]`
    rf"|^\[train: \d{{1,9}}, (?P<step3>{WHOLE}) / (?P<total3>{WHOLE})\]"  # PyTracking
)
_NAMED = re.compile(r"[a-z_)] ?[=:] {0,8}[-+\d.]")
_END = re.compile(
    r"[\])}.,;:!]{0,3}\s*$|\s\([\d.]{1,12} ?s(?:ec)?\)$|[,: ]{1,3}(?:done|finished|completed?|took)\b"
)
_CHATTER = re.compile(
    r"\bworkers?\b(?!-)|data_?loader|data loader|prefetch|download|upload|heartbeat|watchdog|background|alive\b|tokeniz|\bpoller\b|\bmonitor\b(?!\s*[=:/])|\bnvml\b"
    r"|retry|attempt|(?:load|mapp|sav|writ|cach|pack|shard|collat|index|filter|shuffl|fetch|scann|enqueu|buffer|produc|build|extract|convert|compil)(?:ed|ing)\b|\bimbalance="
)
_PREPARES = re.compile(  # before a count without a loss; a warm-up with one trains
    r"\b(?:(?:encod|profil|calibrat|fill|quantiz|export|merg|precomput)ing|warming up)\b"
)
_ABOUT = re.compile(
    r"\b(?:at|on|from|until|till|after|before|every|by|since|for|warm-?up|decay|accumulation|skipped|remaining|(?:max(?:imum)?|total|number of|num)(?: [a-z-]{1,16}){0,2}) $"
)  # a sentence about a step, which another may be, or a setting
_METRIC = re.compile(
    r"(?:loss|(?<![a-z])(?:lr|learning[_ ]rate|grad[_ ]?norm|acc(?:uracy)?(?:@?\d)?|ppl|perplexity|rewards?|score|bleu|f1|bp[bc]|nll|elbo|ms?e|mae|psnr|[wc]er))"
    r"['\"]?(?: ?[:=]| ) {0,8}['\"\[]?[-+]?(?:\d|\.\d|nan|inf)"
)
_OBJECTIVE = re.compile(
    r"[, ][^=]{0,60}\bobjf: [-\d.]|\s{1,8}(?:fps|env-time): \d|, [a-z ]{1,24} \d{1,15}, fps \d"
)
"""Behind a batch or an update, what vouches for it beside a loss: Snowfall's objective, Habitat's speed."""
_COUNTERS = frozenset(
    [
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "it",
        "batch",
        "epoch",
        "train",
        "training",
        "global",
        "rank",
        "info",
        "number",
    ]
)
_NO_WORDS = re.compile(r"\[[^\]]{0,80}\]|\S*\d\S*|[^a-z]+")  # labels, numbers, times, hosts


class PlainFormat:
    """Reads the lines that most scripts print without a framework (`step 12 loss 0.3`). It is tried last, because it would match lines of other formats too."""

    generic = True
    signs = (
        "step",
        "iter",
        "it ",
        "it=",
        "it:",
        "it[",
        "epoch",
        "update",
        "batch",
        "train",
        "test",
        "eval",
        "valid",
        "inference",
        "loss",
    )

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line; looks at the first 2,000 characters."""
        text = line[:MAX_CHARACTERS]
        line = text.lower()
        if not _ANY.search(line) or lists_settings(line):
            return None
        epoch_text = epoch(line) if "epoch" in line else ""
        found = evaluation_count(text, line)
        if found is not None:
            return _evaluation(line, epoch_text, _first(found, "step"), _first(found, "total"))
        counts = any(sign in line for sign in _OF_WORDLESS)
        if counts and (named := _wordless(text, line)) is not None:
            return named
        loss = training_loss(line)
        found, step, total, whole_run = _count(line, loss)
        if found is None:
            return _without_step(line, loss)
        place = found.start()
        if _CHATTER.search(line, 0, len(line) if loss is None else place):
            return None
        if loss is None and _PREPARES.search(line, 0, place):
            return None
        at = place if step or loss is None else _before_loss(line, place)
        if tells_of_evaluation(line, at, has_step=bool(step)):
            return _evaluation(line, epoch_text, step, total)
        vouched = bool(epoch_text) or loss is not None or _METRIC.search(line) is not None
        if not vouched and place and _ABOUT.search(line, max(0, place - 48), place):
            return None
        if found.re is _NUMBER_FIRST and step is None:
            epoch_text = found["step"]
        shape = _shape(line, found, place)
        return LogRecord(
            step=whole(step) if step else None,
            total=whole(total) if total else None,
            loss=loss,
            step_seconds=seconds_of_step(line),
            place=epoch_text,
            format="plain",
            shape=shape,
            bare=bool(step) and not vouched and not (total and _COUNTERS.issuperset(shape.split())),
            whole_run=whole_run,
        )


def _before_loss(line: str, place: int) -> int:
    """Where the loss of an epoch stands, before which an evaluation may be named; `place`, that of the epoch, where it is called training's."""
    return place if _TRAINING_LOSS.search(line) else line.find("loss")


def _first(found: re.Match[str], name: str) -> str | None:
    """The group of this name (step, step2, …) that took part in the match."""
    return next((text for key, text in found.groupdict().items() if text and key.startswith(name)), None)  # fmt: skip


def _wordless(text: str, line: str) -> LogRecord | None:
    found = wordless_count(text)
    if found is None:
        return None
    named = found.groupdict()
    return LogRecord(
        step=whole(named["step"]),
        total=whole(named["total"]) if named.get("total") else None,
        loss=number(named["loss"]) if "loss" in named else training_loss(line),
        step_seconds=seconds_of_step(line),
        place=named.get("epoch") or (epoch(line) if "epoch" in line else ""),
        format="plain",
        shape="number",
    )


def _without_step(line: str, loss: float | None) -> LogRecord | None:
    """A loss beside a count that is too coarse to be a step, or all alone."""
    if loss is None:
        return None
    coarse = _COARSE.search(line)
    if coarse:
        return LogRecord(loss=loss, mark=zlib.crc32(line.encode()), format="plain")
    if _LOSS_ALONE.fullmatch(strip_logger(line).lstrip(": ")):
        return LogRecord(loss=loss, format="plain")
    if _OF_A_STEP.search(line) and not tells_of_evaluation(line, len(line), has_step=False):
        return LogRecord(loss=loss, mark=zlib.crc32(line.encode()), format="plain")
    return None


class _CountFound(NamedTuple):
    """Where the count of a line stands, and what it is."""

    place: re.Match[str] | None = None
    step: str | None = None
    total: str | None = None
    whole_run: bool = False


def _count(line: str, loss: float | None) -> _CountFound:
    """Find the count of a line: the whole run's step before that of an epoch, a step before a number of an epoch."""
    found = _STEP.search(line)
    if found and _is_record(line, found, loss):
        whole_run = _WHOLE_RUN.search(line) if "global" in line or "total_train" in line else None
        if whole_run is None and found["word"] in _MICRO:
            whole_run = _OPTIMIZER.match(line, found.end())
        if whole_run is None and found["word"] == "batch":
            whole_run = _ITERATION.match(line, found.end())
        if whole_run is None and found["total"]:
            whole_run = _larger(_OF_ALL.search(line, found.end()), found["total"])
        counted = whole_run or found
        return _CountFound(
            found, counted["step"], counted["total"], counted["word"].startswith(_OF_WHOLE_RUN)
        )
    if found := _EPOCH.search(line):
        step, total = _first(found, "step"), _first(found, "total")
        if step is None and loss is None and not _END.match(line, found.end()):
            return _CountFound()
        return _CountFound(found, step, total)
    if loss is not None and (found := _EPISODE.search(line)):
        return _CountFound(found, found["step"], found["total"])
    found = _NUMBER_FIRST.search(line) if loss is not None else None
    if found is None or _is_beyond(found):
        return _CountFound()
    return _CountFound(found, None if _counts_epochs(found) else found["step"])


def _larger(found: re.Match[str] | None, total: str) -> re.Match[str] | None:
    """A count behind another one, where it has a larger total than that: of the whole run."""
    return found if found and (whole(found["total"]) or 0) > (whole(total) or 0) else None


def _counts_epochs(found: re.Match[str]) -> bool:
    """Whether a fraction without a word, in brackets or before a colon, has a total that epochs have."""
    few = 0 < (whole(found["total"] or "") or 0) <= _MOST_EPOCHS
    return few and found[0].endswith(("] ", ": "))


def _is_beyond(found: re.Match[str]) -> bool:
    """Whether a count is beyond its total: then it is a day of a month, or another fraction."""
    step, total = whole(found["step"]), whole(found["total"] or "")
    return step is not None and total is not None and step > total


def _evaluation(line: str, epoch_text: str, step: str | None, total: str | None) -> LogRecord:
    """How far an evaluation is: progress without a step."""
    return LogRecord(
        place=f"{epoch_text} {step}/{total}",
        mark=zlib.crc32(line.encode()) if _METRIC.search(line) else 0,
        format="plain",
    )


def _shape(line: str, found: re.Match[str], place: int) -> str:
    """Return the words before the count and its own; those behind it change (memory units, an estimate's days)."""
    word = found["word"] if found.re is _STEP else "epoch" if found.re is _EPOCH else "number"
    if not place:
        return word
    return " ".join((*_NO_WORDS.sub(" ", line[max(0, place - 200) : place]).split(), word))


def _is_record(line: str, found: re.Match[str], loss: float | None) -> bool:
    """Say whether the rest of the line is that of a log record, not of a sentence."""
    if found["total"]:
        return True
    if found["word"].endswith("batch") or found["word"] in ("it", "update", "updates"):
        of_loop = loss is not None or _OF_LOOP.search(line, 0, found.start()) is not None
        return of_loop or _OBJECTIVE.match(line, found.end()) is not None
    end = found.end()
    quoted = line[found.end("word")] in "'\""
    return (
        loss is not None
        or quoted
        or found["sign"].endswith("=")
        or _END.match(line, end) is not None
        or _NAMED.search(line, end) is not None
        or _METRIC.search(line, end) is not None
    )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `plain`: lines of hand-written loops: `step 12,345 loss 0.5`, `Epoch 3 [120/5000]`, `it 12/100`, `{"step": 12}`."""
    return PlainFormat()
