"""Lines of hand-written loops: `step 12 loss 0.5`, `Epoch 3 [120/5000]`, `it 12/100`, `global_step=12`, `{"step": 12}`.

A word and a number are not enough ("step 1: loading the data"): the line must also have a total, a loss, another named
number, or nothing more to say. Lines of loaders, workers, downloads and heartbeats are no progress.
"""

import re

import msgspec

from mldebug.records import NUMBER, WHOLE, LogRecord, duration, number

MAX_CHARACTERS = 2000

_STEP = re.compile(
    r"(?<![a-z0-9/.])(?P<word>(?:global|train(?:ing)?|optimizer)[ _]?step|steps?|iteration|iters?|it|num_updates|batch)"
    rf"(?:\(train\))?['\"]?(?P<sign> ?[=:]|) {{0,12}}[#\[(]? {{0,12}}(?P<step>{WHOLE})(?![\w.]*[a-z])(?!\.\d|%)"
    rf"(?: {{0,12}}(?:/|of) {{0,12}}(?P<total>{WHOLE}))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    rf"\bepoch\b['\"]?[ :=]{{0,4}}\[?\d{{1,9}}(?:/\d{{1,9}})?\]?[ :,|-]{{0,12}}"
    rf"(?:\[ {{0,12}}(?P<step>{WHOLE}) {{0,12}}/ {{0,12}}(?P<total>{WHOLE})(?=[\] (])"
    rf"|(?P<step2>{WHOLE}) {{0,12}}/ {{0,12}}(?P<total2>{WHOLE}))?",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<!val )(?<!eval )(?<!valid )(?<!validation )(?<!test )(?<![\w/])"
    rf"(?:(?:train|training|lm|total|avg|mean|running)[_/])?loss['\"]?[ :=]{{1,8}}['\"]?(?:tensor\()?({NUMBER})",
    re.IGNORECASE,
)
_TIME = re.compile(
    rf"\b(?:(?:step|iter|iteration|batch)[ _]time|time(?= {{0,2}}[:=]? {{0,2}}[\d.]{{1,20}} ?ms)|dt)"
    rf"(?: ?\((?P<unit>ms|s)\))?['\"]? ?[:=]? {{0,8}}(?P<time>{NUMBER})(?: ?(?P<after>ms|s|sec|seconds)\b)?",
    re.IGNORECASE,
)
_SPEED = re.compile(rf"(?<![\w.])({NUMBER}) ?(s/it|it/s)\b")
_NAMED = re.compile(r"[a-z_)] ?[=:] {0,8}[-+\d.]", re.IGNORECASE)
_END = re.compile(
    r"[\])}.,;:!]{0,3}\s*$|[,: ]{1,3}(?:done|finished|completed?|took)\b", re.IGNORECASE
)
_CHATTER = re.compile(
    r"worker|data_?loader|data loader|prefetch|download|upload|heartbeat|watchdog|background|alive\b|tokeniz"
    r"|\bretry|\battempt|\b(?:load|mapp|sav|writ|cach)(?:ed|ing)\b",
    re.IGNORECASE,
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class Plain:
    """Reads what most people print. Tried last: it would take the lines of the other formats too."""

    generic = True

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line; looks at the first 2,000 characters."""
        line = line[:MAX_CHARACTERS]
        found = _STEP.search(line)
        if found and (
            found["total"]
            or (found["word"].lower() not in ("batch", "it") and _says_more(line, found))
        ):
            step, total = found["step"], found["total"]
        elif epoch := _EPOCH.search(line):
            step, total = epoch["step"] or epoch["step2"], epoch["total"] or epoch["total2"]
            if step is None and not _END.match(line, epoch.end()) and not _LOSS.search(line):
                return None
        else:
            return None
        if _CHATTER.search(line):
            return None
        return _record(line, step, total)


def _says_more(line: str, found: re.Match[str]) -> bool:
    """Say whether the rest of the line is that of a log record, not of a sentence."""
    end = found.end()
    assigned = found["sign"].strip() == "=" or line[found.end("word") : end][:1] in ("'", '"')
    return bool(assigned or _END.match(line, end) or _LOSS.search(line) or _NAMED.search(line, end))


def _record(line: str, step: str | None, total: str | None) -> LogRecord:
    loss = _LOSS.search(line)
    return LogRecord(
        step=int(step) if step else None,
        total=int(total) if total else None,
        loss=number(loss[1]) if loss else None,
        step_seconds=_seconds(line),
        format="plain",
    )


def _seconds(line: str) -> float | None:
    if speed := _SPEED.search(line):
        value = duration(speed[1])
        return 1 / value if value and speed[2] == "it/s" else value
    time = _TIME.search(line)
    unit = (time["unit"] or time["after"]) if time else None
    return duration(time["time"], unit.lower()) if time and unit else None


def create(options: Options) -> Plain:
    """Build the format."""
    return Plain()
