"""Hugging Face Trainer and tqdm: `{'loss': 2.3, 'epoch': 0.01}`, ` 12%|█▏ | 123/1000 [00:10<01:20, 10.1it/s]`.

A bar may lack its total (`123it [00:10, 12.1it/s]`, Lightning's `Epoch 0: |  | 3/? [00:01<?, 2.5it/s]`) or itself
(`Epoch 8:  67% 107/150 [02:53<01:18, 15.7s/it]`). One with a description counts steps only where the description speaks
of training (`mldebug.jobs.logs.counter_kind`) or a loss stands beside it, one without only steps, not bytes or files. Where the bar also has
the step of the whole run (`global_step=112.0`, `num_updates=112`), that is it. A dict behind a bar in one line is that bar's. A dict, ms-swift's among them (`'global_step/max_steps': '107/940'`), without a
step tells something new where any number in it is new: a loss may stay at 0.0, and an epoch is rounded.

fastai's bars (`Epoch 2/5 : |████------| 45.00% [45/100 00:10<00:12 0.5123]`) look alike for a training and an evaluation: they are progress
without a step, and its table of epochs is read by `mldebug.jobs.logs.headed_tables`.
"""

import re
import zlib

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.counter_kind import CounterKind, kind_of, prepares
from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.lines.settings_lines import lists_settings
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import (
    NUMBER,
    WHOLE,
    LogFormat,
    LogRecord,
    duration,
    epoch,
    number,
    whole,
)

_DICT = re.compile(
    r"\{'[^{}]{0,4000}'(?:epoch|iteration|(?:global_)?step(?:/max_steps)?)': ?['\d][^{}]{0,4000}\}"
)
_KIND = re.compile(r"'(?:loss|eval_\w{1,100}|train_runtime)':")
_LOSS = re.compile(rf"'loss': ?'?({NUMBER})")
_STEP = re.compile(
    rf"'(?:(?:global_)?step(?:/max_steps)?|iteration)': ?'?(?P<step>{WHOLE})(?:/(?P<total>{WHOLE}))?"
)
_SPEED = re.compile(rf"'train_speed\((?P<unit>s/it|iter/s)\)': ?'?(?P<rate>{NUMBER})")
_RATE = rf", {{0,4}}(?:\?|(?P<rate>{NUMBER})) ?(?P<unit>[A-Za-z]{{1,12}}/s|s/[A-Za-z]{{1,12}})"
_BAR = re.compile(
    rf"(?P<what>[^|\r\n]{{0,160}}?)\d{{1,3}}%(?:\|[^|]{{0,400}}\|)? {{0,20}}(?P<step>{WHOLE})/(?P<total>{WHOLE}) "
    rf"\[[\d:]{{1,12}}<[\d:?]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_OPEN_BAR = re.compile(  # of Lightning, whose total is not known
    rf"(?P<what>[^|\r\n]{{0,100}})\|[^|]{{0,400}}\| {{0,20}}(?P<step>{WHOLE})/(?P<total>\?) "
    rf"\[[\d:]{{1,12}}<[\d:?]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_COUNT = re.compile(  # a bar of tqdm without a total is none
    rf"^(?P<what>[^|\r\n]{{0,100}}?)(?<![\w.])(?P<step>{WHOLE})(?P<total>)it \[[\d:]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_WHOLE_RUN = re.compile(
    rf"\b(?:global_step|num_updates|update)=(?P<step>{WHOLE})(?P<total>)(?:\.0\b)?(?![.\d])"
)
_WHOLE_RUN_BEFORE = re.compile(  # in a description: `Global Step 005112 =>> LR`, `Training (5112 / 10000 Steps)`
    rf"\bglobal[ _]step:? {{0,4}}(?P<step>{WHOLE})\b(?P<total>)|\((?P<step2>{WHOLE}) ?/ ?(?P<total2>{WHOLE}) steps?\)"
)
_STEPS = re.compile(r"(?:s/)?(?:it|iter|step|batch|ba)(?:e?s)?(?:/s)?")
_LABEL = re.compile(r"^(?:\[(?P<tag>[^\]]{0,80})\]:?|\d{1,6}:)\s*")
_NOTEBOOK = re.compile(  # the Trainer's bar in a notebook that runs as a program: `[ 22/290 02:50 < 38:04, 0.12 it/s, Epoch 0.36/5]`
    rf"(?P<what>)\[ {{0,8}}(?P<step>{WHOLE})/(?P<total>{WHOLE}) [\d:]{{1,12}} < [\d:?]{{1,12}}(?:{_RATE})?(?=[,\]])"
)

_FASTAI = re.compile(  # a bar without an epoch is that of a download
    rf"Epoch \d{{1,9}}/\d{{1,9}} : \|[^|]{{0,160}}\| [\d.]{{1,8}}% \[(?!0/){WHOLE}/{WHOLE} [\d:]{{1,12}}<[\d:?]{{1,12}}"
)


class HuggingfaceFormat:
    """Reads the dictionaries and progress bars of the Hugging Face Trainer. Evaluation counts as progress without a step."""

    generic = False
    signs = ("it/s", "s/it", "%|", "it [", "/? [", "{'", "epoch ")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "{'" in line and (found := _DICT.search(line)):
            if lists_settings(line.lower()):
                return None
            record = _of_dict(found[0])
            before = line[: found.start()][-4000:]
            bar = _BAR.search(before) if "<" in before else None
            return _joined(_of_bar(bar, bar[0]), record) if bar and record else record
        if "<" in line and ("%|" in line or "% " in line) and (bar := _BAR.search(line[:4000])):
            return _of_bar(bar, line)
        if "/? [" in line and (bar := _OPEN_BAR.search(line[:4000])):
            return _of_bar(bar, line)
        if " < " in line and (bar := _NOTEBOOK.search(line[:400])):
            return _of_bar(bar, line)
        if "it [" in line and (bar := _COUNT.search(line[:4000])):
            return _of_bar(bar, line)
        if "% [" in line and (bar := _FASTAI.search(line[:400])):
            return LogRecord(mark=zlib.crc32(bar[0].encode()), format="huggingface")
        return None


def _joined(bar: LogRecord | None, record: LogRecord) -> LogRecord:
    """The step of a bar and the loss of a dict that stands behind it in the same line."""
    if bar is None or bar.step is None or record.step is not None or record.loss is None:
        return record
    return msgspec.structs.replace(bar, loss=record.loss)


def _of_dict(text: str) -> LogRecord | None:
    kind = _KIND.search(text)
    if not kind:
        return None
    step, loss, speed = _STEP.search(text), _LOSS.search(text), _SPEED.search(text)
    rate = duration(speed["rate"]) if speed else None
    return LogRecord(
        step=int(step["step"]) if step else None,
        total=whole(step["total"]) if step else None,
        loss=number(loss[1]) if loss else None,
        step_seconds=1 / rate if rate and speed and speed["unit"] == "iter/s" else rate,
        place=epoch(text) if loss else f"{epoch(text)} {kind[0]}",
        mark=0 if step else zlib.crc32(text.encode()),
        format="huggingface",
    )


def _of_bar(bar: re.Match[str], line: str) -> LogRecord | None:
    what = _description(bar["what"].strip())
    phase, unit = kind_of(what), bar["unit"] or ""
    text = line[bar.end() :].lower()
    loss = training_loss(text)
    if phase is CounterKind.OTHER and loss is not None and not prepares(what.lower()):
        phase = CounterKind.TRAINING
    if phase is CounterKind.EVALUATION:
        place = f"{epoch(what)} {bar['step']}/{bar['total']}"
        return LogRecord(place=place, format="huggingface")
    steps = not unit or _STEPS.fullmatch(unit) is not None
    if phase is CounterKind.OTHER or not (what or steps):
        return None
    rate = duration(bar["rate"]) if steps else None
    whole_run = _WHOLE_RUN.search(text) or _WHOLE_RUN_BEFORE.search(what.lower())
    counted = _counted(whole_run) if whole_run else (bar["step"], bar["total"])
    return LogRecord(
        step=int(counted[0]),
        total=whole(counted[1]),
        loss=training_loss(line[: bar.start("step")].lower()) if loss is None else loss,
        step_seconds=1 / rate if rate and unit.endswith("/s") else rate,
        place="" if whole_run else epoch(what) or (what.split()[0] if what[:1].isdigit() else ""),
        format="huggingface",
    )


def _description(what: str) -> str:
    """What a bar is about: the words before it without a logger's; a tag alone (`[eval]: `, `[rollout 32 / 128]: `) where it says that this is
    no training, for most tags name a rank or a host.
    """
    label = _LABEL.match(what)
    words = strip_logger(_LABEL.sub("", what))
    tag = (label["tag"] if label else "") or ""
    says = not words and (kind_of(tag) is CounterKind.EVALUATION or prepares(tag.lower()))
    return tag if says else words


def _counted(found: re.Match[str]) -> tuple[str, str]:
    """The step and the total of a whole run; "" where no total stands there."""
    step, total, *others = (*found.groups(), "")
    return (step, total) if step else (others[0], others[1])


def create(options: NoOptions) -> LogFormat:
    """Build the log format `huggingface`: Hugging Face Trainer and tqdm: `{'loss': 2.3, 'epoch': 0.01}`, ` 12%|█▏ | 123/1000 [00:10<01:20, 10.1it/s]`."""
    return HuggingfaceFormat()
