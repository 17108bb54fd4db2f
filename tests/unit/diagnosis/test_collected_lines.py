"""Last words in what log collectors export are parsed like those in the job's own log."""

import json

import pytest

from mldebug.core.text import message_text
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.marks import take_apart

WORDS = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 88, in train_step',
    "    loss = model(batch)",
    "ValueError: shard 7 has bad magic",
)
MARKED = tuple(f"[rank2]: {line}" for line in WORDS)
TIME = "2026-09-07T13:02:58.123456789Z"


def _json(name: str, **beside: object) -> list[str]:
    return [json.dumps({name: line, **beside}) for line in MARKED]


def _journal_bytes(line: str) -> str:
    """As journald writes a message that holds a colour."""
    return json.dumps({"__REALTIME_TIMESTAMP": "1767225600000000", "_PID": "812", "MESSAGE": list(f"\x1b[0m{line}".encode())})  # fmt: skip


COLLECTED = {
    "docker json-file": _json("log", stream="stderr", time=TIME),
    "logcli, default": [f'2026-09-07T13:02:58Z {{app="t", pod="train-2"}}    {line}' for line in MARKED],
    "logcli -o jsonl": _json("line", labels={"pod": "train-2"}, timestamp=TIME),
    "kubectl logs --prefix --timestamps": [f"[pod/train-2/pytorch] {TIME} {line}" for line in MARKED],
    "stern": [f"train-2 pytorch {line}" for line in MARKED],
    "CRI": [f"{TIME} stderr F {line}" for line in MARKED],
    "journalctl": [f"Sep 07 13:02:58 n1 python[812]: {line}" for line in MARKED],
    "journalctl -o json": _json("MESSAGE", __REALTIME_TIMESTAMP="1767225600000000", _PID="812"),
    "journalctl -o json, with colours": [_journal_bytes(line) for line in MARKED],
    "Fluent Bit, as JSON": _json("log", date=1767225600.1, stream="stderr", kubernetes={"pod_name": "train-2"}),
    "Fluent Bit, to a terminal": [f'[0] kube.train: [[1767225600.123456789, {{}}], {{"stream"=>"stderr", "log"=>"{line}"}}]' for line in MARKED],
    "Fluent Bit 1, to a terminal": [f'[0] kube.train: [1767225600.123456789, {{"log"=>"{line}\\n", "stream"=>"stderr"}}]' for line in MARKED],
    "Google Cloud Logging": _json("textPayload", timestamp=TIME, resource={"labels": {"pod_name": "train-2"}}),
    "aws logs tail": [f"2026-09-07T13:02:58.123000+00:00 train/default/abc {line}" for line in MARKED],
}  # fmt: skip


@pytest.mark.parametrize("collector", COLLECTED)
def test_whose_last_words_they_are(collector: str) -> None:
    found = take_apart(COLLECTED[collector], {})

    assert found.by_rank[2] == WORDS
    error = last_error(found.by_rank[2], "the log")
    assert error is not None
    assert error.error == WORDS[-1]


def test_a_line_of_the_jobs_own_is_no_collectors() -> None:
    """A dict of Ruby's form without what Fluent Bit puts before it, and numbers that are no text."""
    ours = '[rank2]: ValueError: bad record {"log"=>"x"}'
    assert take_apart([ours], {}).by_rank == {2: ('ValueError: bad record {"log"=>"x"}',)}
    figures = '{"step": 7, "timestamp": 1767225600, "data": [1, 2, 3]}'
    assert take_apart([figures], {}).shared == (figures,)
    assert message_text([1, 2, 300]) is None
    assert message_text([True, False]) is None
    assert message_text([]) is None
