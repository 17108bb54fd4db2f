"""Looks for values in a child that may hang (a home, a config file, an agent) while the person gets his prompt back.

It is forked here and not by `spawn.py`, which keeps a helper: the whole command lives for a tenth of a second and starts no program.
A child that hangs is told to end and not waited for. It holds none of the shell's pipes open.
"""

import contextlib
import os
import select
import signal
import time

import msgspec

from mldebug.core.plugins import load
from mldebug.core.redact import clean
from mldebug_agents.cli.completion.request import LISTED, CompletionRequest, Value, is_plain

DEADLINE = 0.7  # seconds; usually it takes 0.05
CHUNK = 1 << 16


def look_aside(kind: str, asked: CompletionRequest) -> list[Value]:
    """The values of one completion plugin, in its order; none where it takes too long or fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(kind, asked, writing)
    os.close(writing)
    told = _read(reading, time.monotonic() + DEADLINE)
    os.close(reading)
    if told is None:
        os.kill(pid, signal.SIGKILL)  # and not waited for: the kernel may hold it
        return []
    os.waitpid(pid, 0)
    return msgspec.json.decode(told, type=list[Value]) if told else []


def _answer(kind: str, asked: CompletionRequest, writing: int) -> None:
    """In the child: look, tell, end. Never returns."""
    with contextlib.suppress(BaseException):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        told = msgspec.json.encode(values(kind, asked))
        while told:
            told = told[os.write(writing, told) :]
    os._exit(0)


def values(kind: str, asked: CompletionRequest) -> list[Value]:
    """Look here and now; a word that a shell would take for more than a word is left out."""
    module = load("completions", kind)
    found = module.create(module.Options()).values(asked)
    plain = [one for one in dict.fromkeys(found) if is_plain(one.word)]
    return [Value(one.word, clean(one.sentence, 200)) for one in plain[:LISTED]]


def _read(reading: int, until: float) -> bytes | None:
    """All that was written, b"" by a child that failed; None where it has not ended in time."""
    told = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        chunk = os.read(reading, CHUNK)
        if not chunk:
            return told
        told += chunk
    return None
