"""Makes what a job, or the owner of a report's file, chose harmless to look at: text without control characters and of bounded
length, numbers that can be reckoned with.

Escaping for HTML and for terminals is left to the renderers; what is done here is done once for all
of them.
"""

import re
from typing import Any

import msgspec

from mldebug.core.report_model import Report

MAX_TEXT = 2_000
"""Longest string a report holds, in characters; rank sets are ours and stay whole."""
MAX_NUMBER = 1 << 63
"""What counts bytes, seconds and processes is no larger; times a hundred it is still a number."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,512}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS: titles, links
    r"|\x1b[ -/]*[0-~]"
)
_RANK_SET = re.compile(r"[0-9,\-/]{0,65536}", re.ASCII)


def tidy(text: str, limit: int = MAX_TEXT) -> str:
    """Return one printable line of at most `limit` characters.

    Terminal sequences go, tabs and line ends become spaces, every other invisible character (bidi overrides
    and lone surrogates among them) becomes U+FFFD.
    """
    if not text.isprintable():
        text = _ESCAPES.sub("", text[: 4 * limit]).expandtabs(4)
        text = "".join(char if char.isprintable() else _shown(char) for char in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def tidy_report(report: Report) -> Report:
    """The report with its strings cleaned of control and invisible characters, and its numbers bounded, in every field."""
    return msgspec.convert(_walk(msgspec.to_builtins(report)), Report)


def _shown(char: str) -> str:
    return " " if char.isspace() else "\ufffd"


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return value if _RANK_SET.fullmatch(value) else tidy(value)
    if isinstance(value, dict):
        return {_walk(key): _walk(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(inner) for inner in value]
    if isinstance(value, int | float) and not -MAX_NUMBER < value < MAX_NUMBER:
        return type(value)(-MAX_NUMBER if value < 0 else MAX_NUMBER)
    return value
