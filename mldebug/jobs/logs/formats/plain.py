"""Lines of hand-written loops: `step 12,345 loss 0.5`, `Epoch 3 [120/5000]`, `it 12/100`, `{"step": 12}`.

A word and a number are not enough ("step 1: loading the data"): the line must also have a total, a loss, another named
number, or nothing more to say. Lines of loaders, workers, downloads and heartbeats are no progress.

No list of words knows every thread that counts something. So a record here tells the shape of its line (the words up to
the count) and whether it is bare: a count that no loss, other metric, total or epoch vouches for. Whether that is the
loop's own is decided where the rhythm of the run is known, in `mldebug.stall.log_filters`. The step of an evaluation
("eval step 3/100") is progress without a step, as in the other formats.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import (
    GROUPED,
    NUMBER,
    LogFormat,
    LogRecord,
    duration,
    epoch,
    number,
    whole,
)

MAX_CHARACTERS = 2000

# All patterns see the line in lower case; each begins with a word that a plain search finds fast.
_ANY = re.compile(r"step|iter|it\b|epoch|num_updates|batch|train: ")
_STEP = re.compile(
    r"(?<![a-z0-9/.])(?P<word>(?:global|train(?:ing)?|optimizer)[ _]?step|steps?|iteration|iters?|it|num_updates|batch)"
    rf"(?:\(train\))?['\"]?(?P<sign> ?[=:]|) {{0,12}}[#\[(]? {{0,12}}(?P<step>{GROUPED})(?![\w.]*[a-z])(?!\.\d|%)"
    rf"(?: {{0,12}}(?:/|of) {{0,12}}(?P<total>{GROUPED}))?"
)
_EPOCH = re.compile(
    rf"\b(?:epoch\b(?:\(train\))?|train:(?= {{1,4}}\d{{1,9}} \[))['\"]?[ :=]{{0,4}}\[?\d{{1,9}}(?:/\d{{1,9}})?\]?[ :,|-]{{0,12}}"
    rf"(?:\[ {{0,12}}(?P<step>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total>{GROUPED})(?=[\] (])"
    rf"|(?P<step2>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total2>{GROUPED}))?"
)
_LOSS = re.compile(rf"loss['\"]?[ :=]{{1,8}}['\"]?(?:tensor\()?({NUMBER})")
_OF_TRAINING = re.compile(  # what may stand before the word loss
    r"(?:^|[^\w/])(?:train|training|lm|total|avg|mean|running)[_/]$"
    r"|(?<!val)(?<!eval)(?<!valid)(?<!validation)(?<!test)[^\w/]$|^$"
)
_TIME = re.compile(
    rf"(?:\b(?:step|iter|iteration|batch)[ _]time|\btime(?= {{0,2}}[:=]? {{0,2}}[\d.]{{1,20}} ?ms)|\bdt)"
    rf"(?: ?\((?P<unit>ms|s)\))?['\"]? ?[:=]? {{0,8}}(?P<time>{NUMBER})(?: ?(?P<after>ms|s|sec|seconds)\b)?"
)
_SPEED = re.compile(rf"(?<![\w.])({NUMBER}) ?(s/it|it/s)\b")
_NAMED = re.compile(r"[a-z_)] ?[=:] {0,8}[-+\d.]")
_END = re.compile(r"[\])}.,;:!]{0,3}\s*$|[,: ]{1,3}(?:done|finished|completed?|took)\b")
_CHATTER = re.compile(
    r"\bworkers?\b(?!-)|data_?loader|data loader|prefetch|download|upload|heartbeat|watchdog|background|alive\b|tokeniz|\bpoller\b|\bmonitor\b(?!\s*[=:/])|\bnvml\b"
    r"|retry|attempt|(?:load|mapp|sav|writ|cach)(?:ed|ing)\b"
)
_EVALUATION = re.compile(  # what may stand before the word step; a launcher's label may be "test:"
    r"(?<![a-z-])(?:(?:eval(?:uat\w{1,4})?|val(?:id(?:at\w{1,4})?)?)[\s_:\])}]{1,4}|test(?:ing)?[ _])$"
)
_METRIC = re.compile(
    r"(?:loss|(?<![a-z])(?:lr|learning[_ ]rate|grad[_ ]?norm|acc(?:uracy)?(?:@?\d)?|ppl|perplexity|rewards?|score|bleu|f1))"
    r"['\"]?(?: ?[:=]| ) {0,8}['\"\[]?[-+]?(?:\d|\.\d|nan|inf)"
)
_NO_WORDS = re.compile(r"\[[^\]]{0,80}\]|\S*\d\S*|[^a-z]+")  # labels, numbers, times, hosts


class PlainFormat:
    """Reads what most people print. Tried last: it would take the lines of the other formats too."""

    generic = True

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line; looks at the first 2,000 characters."""
        line = line[:MAX_CHARACTERS].lower()
        if not _ANY.search(line):
            return None
        found = _STEP.search(line)
        loss = _loss(line)
        if found and _is_record(line, found, loss):
            place = found.start()
            step, total = found["step"], found["total"]
        elif found := _EPOCH.search(line):
            place = found.start()
            step, total = found["step"] or found["step2"], found["total"] or found["total2"]
            if step is None and loss is None and not _END.match(line, found.end()):
                return None
        else:
            return None
        if _CHATTER.search(line, 0, len(line) if loss is None else place):
            return None
        epoch_text = epoch(line) if "epoch" in line else ""
        if place and step and _EVALUATION.search(line, max(0, place - 24), place):
            return LogRecord(
                place=f"{epoch_text} {step}/{total}",
                mark=zlib.crc32(line.encode()) if _METRIC.search(line) else 0,
                format="plain",
            )
        return LogRecord(
            step=whole(step) if step else None,
            total=whole(total) if total else None,
            loss=loss,
            step_seconds=_seconds(line),
            place=epoch_text,
            format="plain",
            shape=_shape(line, found, place),
            bare=bool(
                step and not total and not epoch_text and loss is None and not _METRIC.search(line)
            ),
        )


def _shape(line: str, found: re.Match[str], place: int) -> str:
    """Return the words before the count and its own; those behind it change (memory units, an estimate's days)."""
    word = found["word"] if found.re is _STEP else "epoch"
    if not place:
        return word
    return " ".join((*_NO_WORDS.sub(" ", line[max(0, place - 200) : place]).split(), word))


def _is_record(line: str, found: re.Match[str], loss: float | None) -> bool:
    """Say whether the rest of the line is that of a log record, not of a sentence."""
    if found["total"]:
        return True
    if found["word"] in ("batch", "it"):
        return False
    end = found.end()
    quoted = line[found.end("word")] in "'\""
    return (
        loss is not None
        or quoted
        or found["sign"].endswith("=")
        or _END.match(line, end) is not None
        or _NAMED.search(line, end) is not None
        or _LOSS.search(line, end) is not None
    )


def _loss(line: str) -> float | None:
    """Return the loss of training, which may stand beside that of an evaluation."""
    if "loss" in line:
        for found in _LOSS.finditer(line):
            if _OF_TRAINING.search(line[max(0, found.start() - 20) : found.start()]):
                return number(found[1])
    return None


def _seconds(line: str) -> float | None:
    if ("it/s" in line or "s/it" in line) and (speed := _SPEED.search(line)):
        value = duration(speed[1])
        return 1 / value if value and speed[2] == "it/s" else value
    time = _TIME.search(line) if "time" in line or "dt" in line else None
    unit = (time["unit"] or time["after"]) if time else None
    return duration(time["time"], unit) if time and unit else None


def create(options: NoOptions) -> LogFormat:
    """Build the format."""
    return PlainFormat()
