"""The duration of a training step that a log line tells: `0.31 s/it`, `s/step: 0.31`, `4.0 steps/s`, `step time (ms): 310`. Pure."""

import re

from mldebug.jobs.logs.records import NUMBER, duration

_NAMED_TIME = (
    r"(?:(?<![a-z])(?:per_)?(?:step|iter|iteration|b(?:atch)?)[ _]?(?:time|avg)|\btime(?= {0,2}[:=]? {0,2}[\d.]{1,20} ?ms)|\bdt)"
    r"(?:(?: ?\(|[_/])(?P<unit>ms|s|sec|secs|seconds)(?![a-z])\)?)?"
    r"['\"]? ?[:=]? {0,8}(?P<time>NUMBER)(?: ?(?P<after>ms|s|sec|seconds)\b)?"
)
_TIMES = tuple(  # with a word that such a line must have, since most have none of them
    (
        sign,
        re.compile(pattern.replace("NUMBERK", r"\d{1,6}(?:\.\d{1,3})?").replace("NUMBER", NUMBER)),
        unit,
    )
    for sign, pattern, unit in (
        ("", _NAMED_TIME, None),  # with a unit, before or behind it
        # MMEngine, Detectron2, torchvision
        ("time: ", r"\btime: {1,4}(?P<time>NUMBER),? {1,4}(?:last_time|data_time|data|text_tokens):", "s"),
        # XTuner
        ("data_time: ", r"\bdata_time: NUMBER(?: \(NUMBER\))?,? .{0,40}?\btime: (?P<time>NUMBER)", "s"),
        # a mean beside it: timm, Swin
        ("(", r"\btime:?[ \t]{1,4}(?P<time>NUMBER)s?(?:, {1,8}[\d.,]{1,12}/s)? {1,3}\( ?NUMBER", "s"),
        ("iter_time", r"\biter_time: (?P<time>NUMBER), data", "s"),  # ModelScope
        ("iter_speed", r"\biter_speed (?P<time>NUMBER) seconds per iteration", "s"),  # Cosmos
        ("batch_cost", r"(?<![a-z])batch_cost: ?(?P<time>NUMBER)(?: ?s| sec)?\b", "s"),  # PaddlePaddle
        ("time (data)", r"\btime \(data\): (?P<time>NUMBER) \(", "s"),  # BasicSR
        ("time/step", r"\btime/step: {1,8}(?P<time>NUMBER) ?(?P<after>ms|s)?\b", "s"),
        ("step time", r"(?:average step time|\bstep time): (?P<time>NUMBER)", "s"),
        ("_ms", r"(?:elapsed_)?time_per_iteration_ms[:=] ?(?P<time>NUMBER)(?![\w.])", "ms"),
        ("_ms", r"(?:elapsed_)?time_per_iteration_ms[:=] ?(?P<time>NUMBERK)k\b", "s"),  # nanotron
        ("timing", r"step_timing in (?P<unit>s|ms)\b['\"]?[:=] ?(?P<time>NUMBER)", "s"),  # NeMo
        ("seconds: ", r"\bstep: \d{1,15}, seconds: (?P<time>NUMBER)", "s"),  # MaxText
        (" ms", r"[|(] ?(?P<time>NUMBER) ms(?= ?[|,)])", "ms"),  # llm.c
    )
)  # fmt: skip
_SPEED = re.compile(
    rf"(?<![\w.])(?P<speed>{NUMBER}) ?(?:(?P<unit>m?s)(?:ec)?/(?:it|iter|step|batch)|(?:it|iter|step|batch)(?:e?s)?/s(?:ec)?)\b"
)
# The unit is a name before its number: `s/step: 0.31`, `it/s 4.0`. Of `2.5 s/it 3.2 samples/s` it is that of the number before it.
_NAMED_SPEED = re.compile(
    r"(?<![a-z/])(?<!eval_)(?<!eval )(?<!val_)(?:train_)?(?:(?P<unit>ms|s(?:ec(?:ond)?s?)?)(?:/|_per_| per )(?:it|iter|iteration|step|(?:mini-?)?batch|b)(?![a-z])"
    r"|(?:it|iter|iteration|step|batch)(?:e?s)?(?:/|_per_| per )s(?:ec(?:ond)?)?(?![a-z]))"
    rf"\)?['\"]?(?: ?(?P<sign>[:=])| ) {{0,8}}['\"]?(?P<speed>{NUMBER})(?P<more> ?(?:[a-z]{{1,12}}/|%|[a-z]{{1,4}}\b(?! ?[:=\d-]))?)"
)


def seconds_of_step(line: str) -> float | None:
    """The seconds that a step took, in a line in lower case; None where it tells none. Of a rate (`4.0 it/s`) its inverse."""
    if "/s" in line or "s/" in line or "sec" in line or "s per" in line or "s_per" in line:
        found = _named_speed(line) or _SPEED.search(line)
        if found:
            unit = found["unit"]
            value = duration(found["speed"], unit)
            return 1 / value if value and not unit else value
    if not (
        "tim" in line
        or "avg" in line
        or "dt" in line
        or "cost" in line
        or "ms" in line
        or "speed" in line
        or "seconds" in line
    ):
        return None
    for sign, pattern, unit in _TIMES:
        if sign not in line:
            continue
        if time := pattern.search(line):
            groups = time.groupdict()
            unit = groups.get("unit") or groups.get("after") or unit
            if unit:
                return duration(time["time"], unit)
    return None


def _named_speed(line: str) -> re.Match[str] | None:
    """A unit with its number behind it, where the number before it is not its own."""
    for found in _NAMED_SPEED.finditer(line):
        before = line[: found.start()]
        follows_number = before[-1:].isdigit() or (before[-1:] == " " and before[-2:-1].isdigit())
        if found["sign"] or not follows_number or not found["more"].strip():
            return found
    return None
