"""Which lines of a log tell of an evaluation: `[val] 3/40`, `| valid |`, `"mode": "val"`, `Validation [3/12]`. All are in lower case.

An evaluation goes on beside the count of training, so its own count is progress without a step, and its loss is not training's.
"""

import re
from collections.abc import Callable

from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.records import GROUPED, WHOLE

_BEFORE_STEP = re.compile(  # what may stand before the word step; a launcher's label may be "test:"
    r"(?<![a-z=-])(?:(?:eval(?:uat\w{1,4})?|val(?:id(?:at\w{1,4})?)?)[\s_:\])}]{1,4}|(?:test(?:ing)?|dev)[ _])$"
)
_WORDS = re.compile(
    r"(?<![\w/.-])(?:eval(?:uation|uating)?|validat(?:ion|ing))(?![\w/.=-]| every\b)|(?<![\w/.-])(?:valid|val|test)(?: ?\|| on ['\"])|(?:^|[ :-])\[(?:val(?:id(?:ation)?)?|eval(?:uation)?)\][ :]|^val(?:id)?: |^testing(?: at\b|:? {0,4}[-\[(]? ?\d)"
    r"|(?:^|- |\] )(?:valid|val|test|dev|eval), [a-z_]{2,12}: ?\d"  # FunASR
)
_FIRST = re.compile(  # before the word of the count: `Test: batch 5/900`, `valid epoch 3 loss`
    r"(?:^|\] |- |: )(?:test: (?:batch|epoch) |(?:val(?:id)?|test|dev|eval) (?:epoch|batch) )\[?\d"
)
_COLUMN = re.compile(  # of its own, behind the count: `Step 5/100 | eval | total step 105/1000`
    r"\| {0,4}(?:eval(?:uat\w{1,4})?|val(?:id(?:at\w{1,4})?)?|test(?:ing)?|dev) {0,4}\|"
)
_KEY = re.compile(  # wherever it stands: `"mode": "val"`, `split=test`; but a stage `dev` or a type `test` may be that of a deployment
    r"(?:(?<![a-z])(?:mode|phase|split|subset)['\"]?[:=] ?['\"]?(?:val(?:id\w{0,6})?|eval\w{0,6}|test(?:ing)?|dev|infer\w{0,5})"
    r"|(?<![a-z_])(?:_?type|stage)['\"]?[:=] ?['\"]?(?:val(?:id\w{0,6})?|eval\w{0,6}|test(?:ing|(?=_))|infer\w{0,5}))(?:_(?:iter|epoch|step))?(?![\w/.-])"
)
_TRAINING_KEY = re.compile(r"(?:_?type|mode|phase|split|stage|subset)['\"]?[:=] ?['\"]?train")
_OF_TRAINING = re.compile(
    r"train|(?<!_)loss['\"]?[ :=]{1,4}\d"
)  # what stands before an evaluation's column in a line of training
_COUNT = re.compile(
    rf"(?:(?<![\w/.-])(?:test|val(?:id(?:ation)?)?|eval(?:uation)?)\b ?:?|epoch\((?:val|test)\)) {{0,4}}(?:\[\d{{1,9}}\])?\[ {{0,12}}(?P<step>{GROUPED}) {{0,4}}/ {{0,12}}(?P<total>{GROUPED})\]"
    rf"|\binference done (?P<step2>{GROUPED})/(?P<total2>{GROUPED})"
    rf"|^\[val: \d{{1,9}}, (?P<step3>{WHOLE}) / (?P<total3>{WHOLE})\]"
    rf"|^\[[> ]{{4,120}}\] (?P<step4>{WHOLE})/(?P<total4>{WHOLE}), [\d.]{{1,9}} task/s, elapsed: "  # MMCV
)
_COUNT_FIRST = re.compile(  # `Evaluating: 3/12`, `Validation [3/12]`, `eval 3 of 12`; a logger's words may stand before it
    rf"(?:[\w.]{{1,40}} - [a-z]{{4,8}} - )?(?:val(?:id(?:at(?:ion|ing))?)?|eval(?:uat(?:ion|ing))?)(?:(?::| ) {{0,4}}|(?=[\[(]))[\[(]?(?P<step>{WHOLE})(?:/| of )(?P<total>{WHOLE})(?![\w/]|\.\d)"
)


def evaluation_count(text: str, line: str) -> re.Match[str] | None:
    """The match of how far an evaluation is, if the line tells that; its groups `step…` and `total…` are what it counts.

    `text`: the line as it stands in the log, whose logger's head shows by its capitals.
    """
    found = _COUNT.search(line) if "[" in line or "inference" in line else None
    if found is None and ("eval" in line or "valid" in line or line.startswith("val ")):
        return _COUNT_FIRST.match(strip_logger(text).lower())
    return found


def tells_of_evaluation(line: str, place: int, *, has_step: bool) -> bool:
    """Whether a count or loss at `place` is an evaluation's: by the words before it, or by those of the line. `has_step`: the count
    is one of steps, right before which `test` and `dev` say the same.
    """
    if not ("val" in line or "test" in line or "dev" in line or "infer" in line):
        return False
    if (place and _WORDS.search(line, 0, place)) or _has_first(_KEY, line, _TRAINING_KEY.search):
        return True
    if _FIRST.search(line):
        return True
    if "|" in line and _has_first(_COLUMN, line, _OF_TRAINING.search):
        return True
    return has_step and _BEFORE_STEP.search(line, max(0, place - 24), place) is not None


def _has_first(sign: re.Pattern[str], line: str, other: Callable[[str, int, int], object]) -> bool:
    """Whether a line has this sign, and nothing before it that the other search finds."""
    found = sign.search(line)
    return found is not None and not other(line, 0, found.start())
