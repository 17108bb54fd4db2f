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

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import (
    GROUPED,
    NUMBER,
    WHOLE,
    LogFormat,
    LogRecord,
    duration,
    epoch,
    whole,
)

MAX_CHARACTERS = 2000

# All patterns see the line in lower case; each begins with a word that a plain search finds fast.
_ANY = re.compile(
    r"step|iter|it\b|epoch|num_updates|batch|train(?:ing)?:? |test: |inference done|loss"
)
_COUNT = (
    rf"(?:\(train\))?['\"]?(?P<sign> ?[=:]|) {{0,12}}['\"]?[#\[(]? {{0,12}}(?P<step>{GROUPED})(?![\w.]*[a-z])(?!\.\d|%)"
    rf"(?: {{0,12}}(?:/|of) {{0,12}}(?P<total>{GROUPED}))?"
)
_STEP = re.compile(
    r"(?:(?<![a-z0-9/._])|(?:(?<=val_)|(?<=valid_)|(?<=test_))(?!steps|iters))(?P<word>(?:global|train(?:ing)?|optim\w{0,6}|acc|cur(?:rent)?)[ _]?(?:step|iter)|steps?|iteration|iters?|it|num_updates|batch)"
    + _COUNT
)
_WHOLE_RUN = re.compile(
    r"(?<![a-z0-9._])(?P<word>global[ _]?step)" + _COUNT
)  # beside the count of an epoch
_NUMBER_FIRST = re.compile(
    rf"^ {{0,12}}(?P<step>{WHOLE}) {{0,4}}[|,\t](?P<total>)"
)  # a table: 107 | loss 6.5 | lr 3e-4
_EPOCH = re.compile(
    rf"\b(?:epoch\b(?:\(train\))?|train:(?= {{1,4}}\d{{1,9}}(?:/\d{{1,9}} \( {{0,2}}\d{{1,3}}%\))? \[)|train(?:ing)?:?(?= {{1,4}}\[))['\"]?[ :=]{{0,4}}(?:\[?\d{{1,9}}(?:/\d{{1,9}}(?: \( {{0,2}}\d{{1,3}}%\))?)?\]?|(?=\[))[ :,|-]{{0,12}}"
    rf"(?:\[ {{0,12}}(?P<step>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total>{GROUPED})(?=[\] (])"
    rf"|(?P<step2>{GROUPED}) {{0,12}}/ {{0,12}}(?P<total2>{GROUPED}))?"
)
_STEP_TIME = (
    r"(?:\b(?:step|iter|iteration|batch)[ _](?:time|avg)|\btime(?= {0,2}[:=]? {0,2}[\d.]{1,20} ?ms)|\bdt)(?: ?\((?P<unit>ms|s)\))?"
    r"['\"]? ?[:=]? {0,8}(?P<time>NUMBER)(?: ?(?P<after>ms|s|sec|seconds)\b)?"
)
_TIMES = tuple(
    (re.compile(pattern.replace("NUMBER", NUMBER)), unit)
    for pattern, unit in (
        (_STEP_TIME, None),
        (
            r"\btime: {1,4}(?P<time>NUMBER) {1,4}(?:last_time|data_time|data):",
            "s",
        ),  # MMEngine, Detectron2, torchvision
        (r"step_timing in (?P<unit>s|ms)\b['\"]?[:=] ?(?P<time>NUMBER)", "s"),  # NeMo
        (r"\bstep: \d{1,15}, seconds: (?P<time>NUMBER)", "s"),  # MaxText
    )
)
_SPEED = re.compile(
    rf"(?<![\w.])(?P<speed>{NUMBER}) ?(?:(?P<unit>m?s)(?:ec)?/(?:it|iter|step|batch)|(?:it|iter|step|batch)(?:e?s)?/s(?:ec)?)\b"
)
_NAMED = re.compile(r"[a-z_)] ?[=:] {0,8}[-+\d.]")
_END = re.compile(r"[\])}.,;:!]{0,3}\s*$|[,: ]{1,3}(?:done|finished|completed?|took)\b")
_CHATTER = re.compile(
    r"\bworkers?\b(?!-)|data_?loader|data loader|prefetch|download|upload|heartbeat|watchdog|background|alive\b|tokeniz|\bpoller\b|\bmonitor\b(?!\s*[=:/])|\bnvml\b"
    r"|retry|attempt|(?:load|mapp|sav|writ|cach|pack|shard|collat|index|filter|shuffl|fetch|scann|enqueu|buffer|produc)(?:ed|ing)\b"
)
_ABOUT = re.compile(
    r"\b(?:at|from|until|till|after|before|every|by|since|for) $"
)  # a sentence about a step, which another may be
_EVALUATION = re.compile(  # what may stand before the word step; a launcher's label may be "test:"
    r"(?<![a-z-])(?:(?:eval(?:uat\w{1,4})?|val(?:id(?:at\w{1,4})?)?)[\s_:\])}]{1,4}|test(?:ing)?[ _])$"
)
_EVALUATES = re.compile(
    r"(?<![\w/.-])(?:eval(?:uation|uating)?|validat(?:ion|ing))(?![\w/.=-])|(?<![\w/.-])(?:valid|val|test) ?\|"
)
_EVALUATION_COUNT = re.compile(
    rf"(?:(?<![\w/.-])(?:test|val(?:id(?:ation)?)?|eval(?:uation)?)\b ?:?|epoch\((?:val|test)\)) {{0,4}}(?:\[\d{{1,9}}\])?\[ {{0,12}}(?P<step>{GROUPED}) {{0,4}}/ {{0,12}}(?P<total>{GROUPED})\]"
    rf"|\binference done (?P<step2>{GROUPED})/(?P<total2>{GROUPED})"
)
_METRIC = re.compile(
    r"(?:loss|(?<![a-z])(?:lr|learning[_ ]rate|grad[_ ]?norm|acc(?:uracy)?(?:@?\d)?|ppl|perplexity|rewards?|score|bleu|f1))"
    r"['\"]?(?: ?[:=]| ) {0,8}['\"\[]?[-+]?(?:\d|\.\d|nan|inf)"
)
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
        "num_updates",
        "batch",
        "train",
        "test",
        "inference",
        "loss",
    )

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line; looks at the first 2,000 characters."""
        line = line[:MAX_CHARACTERS].lower()
        if not _ANY.search(line):
            return None
        epoch_text = epoch(line) if "epoch" in line else ""
        if ("[" in line or "inference" in line) and (found := _EVALUATION_COUNT.search(line)):
            return _evaluation(
                line, epoch_text, found["step"] or found["step2"], found["total"] or found["total2"]
            )
        loss = training_loss(line)
        found, step, total = _count(line, loss)
        if found is None:
            return None
        place = found.start()
        if _CHATTER.search(line, 0, len(line) if loss is None else place):
            return None
        evaluates = place and (
            _EVALUATES.search(line, 0, place)
            or (step and _EVALUATION.search(line, max(0, place - 24), place))
        )
        if evaluates:
            return _evaluation(line, epoch_text, step, total)
        vouched = bool(epoch_text) or loss is not None or _METRIC.search(line) is not None
        if not vouched and place and _ABOUT.search(line, max(0, place - 24), place):
            return None
        shape = _shape(line, found, place)
        return LogRecord(
            step=whole(step) if step else None,
            total=whole(total) if total else None,
            loss=loss,
            step_seconds=_seconds(line),
            place=epoch_text,
            format="plain",
            shape=shape,
            bare=bool(step) and not vouched and not (total and _COUNTERS.issuperset(shape.split())),
        )


_Found = tuple[re.Match[str] | None, str | None, str | None]  # where the count stands, step, total


def _count(line: str, loss: float | None) -> _Found:
    """Find the count of a line: the whole run's step before that of an epoch, a step before a number of an epoch."""
    found = _STEP.search(line)
    if found and _is_record(line, found, loss):
        whole_run = _WHOLE_RUN.search(line) if "global" in line else None
        return (
            found,
            *((whole_run["step"], None) if whole_run else (found["step"], found["total"])),
        )
    if found := _EPOCH.search(line):
        step, total = found["step"] or found["step2"], found["total"] or found["total2"]
        if step is None and loss is None and not _END.match(line, found.end()):
            return None, None, None
        return found, step, total
    found = _NUMBER_FIRST.search(line) if loss is not None else None
    return found, found["step"] if found else None, None


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
    if found["word"] in ("batch", "it"):
        return loss is not None
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


def _seconds(line: str) -> float | None:
    if ("/s" in line or "s/" in line or "sec/" in line) and (speed := _SPEED.search(line)):
        value = duration(speed["speed"], speed["unit"])
        return 1 / value if value and not speed["unit"] else value
    if "tim" in line or "dt" in line or "step" in line:
        for pattern, unit in _TIMES:
            if time := pattern.search(line):
                groups = time.groupdict()
                unit = groups.get("unit") or groups.get("after") or unit
                return duration(time["time"], unit) if unit else None
    return None


def create(options: NoOptions) -> LogFormat:
    """Build the format."""
    return PlainFormat()
