"""Hugging Face Trainer and tqdm: `{'loss': 2.3, 'epoch': 0.01}`, ` 12%|█▏ | 123/1000 [00:10<01:20, 10.1it/s]`.

A bar without a total is read as well: `123it [00:10, 12.1it/s]`, Lightning's `Epoch 0: |  | 3/? [00:01<?, 2.5it/s]`. A bar
with a description counts steps only where the description speaks of training; the bars of downloads, shards and
`datasets.map` are no progress of the loop. A dict without a step tells something new where any number in it is new: a
loss may stay at 0.0, and an epoch is rounded.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, epoch, number

_DICT = re.compile(r"\{'[^{}]{0,4000}'epoch': ?['\d][^{}]{0,4000}\}")
_KIND = re.compile(r"'(?:loss|eval_\w{1,100}|train_runtime)':")
_LOSS = re.compile(rf"'loss': ?'?({NUMBER})")
_STEP = re.compile(rf"'(?:global_)?step': ?'?({WHOLE})")
_RATE = rf", {{0,4}}(?:\?|(?P<rate>{NUMBER}))(?P<unit>it/s|s/it)"
_BAR = re.compile(
    rf"(?P<what>[^|\r\n]{{0,100}}?)\d{{1,3}}%\|[^|]{{0,400}}\| {{0,20}}(?P<step>{WHOLE})/(?P<total>{WHOLE}) "
    rf"\[[\d:]{{1,12}}<[\d:?]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_OPEN_BAR = re.compile(  # of Lightning, whose total is not known
    rf"(?P<what>[^|\r\n]{{0,100}})\|[^|]{{0,400}}\| {{0,20}}(?P<step>{WHOLE})/(?P<total>\?) "
    rf"\[[\d:]{{1,12}}<[\d:?]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_COUNT = re.compile(  # a bar of tqdm without a total is none
    rf"^(?P<what>[^|\r\n]{{0,100}}?)(?<![\w.])(?P<step>{WHOLE})(?P<total>)it \[[\d:]{{1,12}}(?:{_RATE})?(?=[,\]])"
)
_BAR_LOSS = re.compile(rf"[,\[] {{0,4}}(?:train_?)?loss=({NUMBER})")
_SHORT = r"\d{1,6}/\d{1,6} {1,20}[\d.]{1,8}G "  # Ultralytics: epoch and memory
_TRAINING = re.compile(rf"train|epoch|step|iter|^loss\b|^{_SHORT}", re.IGNORECASE)
_EVALUATION = re.compile(r"valid|eval|test", re.IGNORECASE)
_LABEL = re.compile(r"^(?:\[[^\]]{0,80}\]:?|\d{1,6}:)\s*")


class HuggingfaceFormat:
    """Reads Trainer dicts and training bars. Evaluation is progress without a step."""

    generic = False

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line."""
        if "{'" in line and (found := _DICT.search(line)):
            return _of_dict(found[0])
        if "%|" in line and (bar := _BAR.search(line[:4000])):
            return _of_bar(bar, line)
        if "/? [" in line and (bar := _OPEN_BAR.search(line[:4000])):
            return _of_bar(bar, line)
        if "it [" in line and (bar := _COUNT.search(line[:4000])):
            return _of_bar(bar, line)
        return None


def _of_dict(text: str) -> LogRecord | None:
    kind = _KIND.search(text)
    if not kind:
        return None
    step, loss = _STEP.search(text), _LOSS.search(text)
    return LogRecord(
        step=int(step[1]) if step else None,
        loss=number(loss[1]) if loss else None,
        place=epoch(text) if loss else f"{epoch(text)} {kind[0]}",
        mark=0 if step else zlib.crc32(text.encode()),
        format="huggingface",
    )


def _of_bar(bar: re.Match[str], line: str) -> LogRecord | None:
    what = _LABEL.sub("", bar["what"].strip())
    if _EVALUATION.search(what):
        place = f"{epoch(what)} {bar['step']}/{bar['total']}"
        return LogRecord(place=place, format="huggingface")
    if what and not _TRAINING.search(what):
        return None
    rate = duration(bar["rate"])
    loss = _BAR_LOSS.search(line, bar.end())
    return LogRecord(
        step=int(bar["step"]),
        total=int(bar["total"]) if bar["total"].isdigit() else None,
        loss=number(loss[1]) if loss else None,
        step_seconds=1 / rate if rate and bar["unit"] == "it/s" else rate,
        place=epoch(what) or (what.split()[0] if what[:1].isdigit() else ""),
        format="huggingface",
    )


def create(options: NoOptions) -> LogFormat:
    """Build the format."""
    return HuggingfaceFormat()
