"""What one TAB prints: a line for each candidate, `TYPE, tab, VALUE, tab, SENTENCE`. `mldebug.cli.main` swallows errors.

zsh and fish give the words as arguments. bash gives its line, and the piece of the last word that it will replace.

Values are looked up in a child process, because a home, a config file or an agent may hang. It is forked here and not by
`spawn.py`: the whole command lives for a tenth of a second and starts no program. A child that hangs is killed and not waited
for, and holds none of the shell's pipes open.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
from click.shell_completion import CompletionItem, split_arg_string

from mldebug.core.plugins import create
from mldebug.core.redact import clean
from mldebug_agents.cli.completion.request import LISTED, CompletionRequest, Value, is_plain
from mldebug_agents.cli.completion.skeleton import candidates
from mldebug_agents.cli.completion.table import read_table
from mldebug_agents.cli.completion.values import ValueSource


def complete(shell: str, arguments: Sequence[str]) -> None:
    """Print the candidates for the last word of a command line, in the form that the shell's completion script reads.

    `shell`: bash, zsh or fish. `arguments`: for bash the line and the piece of its last word to
    replace, else the words.
    """
    output = "".join(f"{line}\n" for line in lines(shell, list(arguments)))
    sys.stdout.write(output)
    sys.stdout.flush()


def lines(shell: str, arguments: list[str]) -> list[str]:
    """The candidates for the last word, one a line, in this shell's form; bash gets no descriptions."""
    line, piece = (*arguments, "", "")[:2]
    words = split(line) if shell == "bash" else arguments
    found = candidates(read_table(), words, look_aside, described=shell != "bash")
    word = words[-1] if words else ""
    option = word[: word.find("=") + 1] if word.startswith("--") else ""
    cut = word.removesuffix(piece) if shell == "bash" else ""
    return [_line(one, option, cut) for one in found]


def split(line: str) -> list[str]:
    """The words of a line after the program's name. The last one is being typed and may be empty."""
    words = split_arg_string(line)
    return [*words[1:], *([""] if line[-1:].isspace() else [])]


def _line(one: CompletionItem, option: str, cut: str) -> str:
    sentence = (one.help or "").replace("\t", " ").replace("\n", " ")
    word = one.value if one.value.startswith("--") else option + one.value
    return f"{one.type}\t{word.removeprefix(cut)}\t{sentence}"


DEADLINE = 0.7  # seconds; usually it takes 0.05


CHUNK = 1 << 16


def look_aside(kind: str, request: CompletionRequest) -> list[Value]:
    """The values that one completion plugin offers, asked in a child process; empty where that
    takes more than `DEADLINE` seconds or fails.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(kind, request, writing)
    os.close(writing)
    encoded = _read(reading, time.monotonic() + DEADLINE)
    os.close(reading)
    if encoded is None:
        os.kill(pid, signal.SIGKILL)  # and not waited for: the kernel may hold it
        return []
    os.waitpid(pid, 0)
    return msgspec.json.decode(encoded, type=list[Value]) if encoded else []


def _answer(kind: str, request: CompletionRequest, writing: int) -> None:
    """In the child: look up the values, write them as JSON, exit. Never returns."""
    # whatever it is: TAB offers nothing, and prints nothing into a command line
    with contextlib.suppress(BaseException):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        encoded = msgspec.json.encode(values(kind, request))
        while encoded:
            encoded = encoded[os.write(writing, encoded) :]
    os._exit(0)


def values(kind: str, request: CompletionRequest) -> list[Value]:
    """The values that one completion plugin offers, at most `LISTED`.

    Words that a shell would not take literally are left out.
    """
    source: ValueSource = create("completions", kind)
    found = source.values(request)
    plain = [one for one in dict.fromkeys(found) if is_plain(one.word)]
    return [Value(one.word, clean(one.sentence, 200)) for one in plain[:LISTED]]


def _read(reading: int, until: float) -> bytes | None:
    """Return all that the child wrote, b"" if it failed; None where it has not ended in time."""
    received = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        chunk = os.read(reading, CHUNK)
        if not chunk:
            return received
        received += chunk
    return None
