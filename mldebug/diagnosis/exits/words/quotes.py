"""Tracebacks that a rank only quotes: another one raised them, and its number may stand before them. Pure.

| who writes it | what stands before the quoted traceback |
|---|---|
| Ray Train 2 | `[Rank 2]`, `[Rank 0,2 Error Snippet]:` |
| torch.multiprocessing.spawn, Paddle | `-- Process 2 terminated with the following error:` |
| torch's distributed checkpoint | `Traceback (most recent call last): (RANK 2)`, in the header itself |
| torch's RPC | `On WorkerInfo(id=2, name=worker2):` |
| Lightning | `DeadLock detected from rank: 2` |
| Monarch | `Traceback of where the remote call failed (most recent call last):`, without a number |
| people | `rank 2 reported:`, and marks before each line: `> Traceback …`, `worker output: [rank2]: Traceback …` |

What a DataLoader's worker, a process of a pool or a thread raised is no quote: they belong to the rank.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import Accusation, RankError
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.error_text import MAX_LINES, whole_error
from mldebug.diagnosis.exits.words.tracebacks import BETWEEN, Traceback, prefix_of, without

MOST = 16  # ranks of one quote
ABOVE = 3  # lines before the header in which it is introduced
NEAR = 3  # lines between an error and what goes on with it
_INTRODUCED = re.compile(
    r"^\W{0,4}\[?Ranks? (?P<ray>[\d, ]{1,200})(?: Error Snippet)?\]?:?\s*$"
    r"|\b[Pp]rocess (?P<spawn>\d{1,7}) terminated with the following error:"
    r"|\bOn WorkerInfo\(id=(?P<rpc>\d{1,7}), name="
    r"|DeadLock detected from rank: (?P<lightning>\d{1,7})"
    r"|\b[Rr]ank (?P<told>\d{1,7}) (?:reported|raised|failed|wrote|printed|crashed|died)\b[^\n]{0,80}:\s*$"
    r"|\b(?:[Ww]orker|[Rr]emote|[Pp]eer|[Oo]ther rank)\b[^\n]{0,60}\b(?:reported|raised|failed with|traceback|exception)\b[^\n]{0,40}:\s*$",
)
_HEADER = re.compile(
    r"Traceback \(most recent call last\): \(RANK (?P<dcp>\d{1,7})\)|Traceback of where the remote call failed"
    r"|\[rank(?P<mark>\d{1,7})\]: ?Traceback \("
)
_MARKED = re.compile(r"^\s{0,4}(?:> ?){1,4}Traceback \(")
_SHOWN = re.compile(r"\w{1,80}\(.{0,2000}\)\s*$")  # an exception as repr shows it
_NUMBER = re.compile(r"\d{1,7}")


class Quote(NamedTuple):
    """A traceback that a rank's log only quotes.

    `ranks`: those that raised it; empty where that is not written.
    """

    found: Traceback
    ranks: tuple[int, ...]


def quote_of(lines: Sequence[str], found: Traceback) -> Quote | None:
    """Whose traceback this is, where the log only quotes it; None where it is the writer's own.

    `found`: its place in `lines`.
    """
    header = lines[found.start]
    own = _HEADER.search(header)
    if own is not None:
        return Quote(found, _ranks(own))
    for text in _above(lines, found):
        introduced = _INTRODUCED.search(text)
        if introduced is not None:
            return Quote(found, _ranks(introduced))
        if text.strip().strip("-=*") and not _SHOWN.match(text):
            break
    return Quote(found, ()) if _MARKED.match(header) else None


def _above(lines: Sequence[str], found: Traceback) -> list[str]:
    """The lines right above a traceback, the nearest first, without what stands before each; where its lines are known by that, without those of others."""
    prefix = prefix_of(lines, found.start)
    before = lines[max(0, found.start - BETWEEN) : found.start][::-1]
    own = [text for line in before if (text := without(line, prefix))] if prefix else []
    return (own or list(before))[:ABOVE]


def quoted_lines(text: str) -> Quote | None:
    """The first traceback quoted inside the text of one error, and the ranks that its introduction names; None without one."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        found = _HEADER.search(line) or _INTRODUCED.search(line)
        if found is not None:
            return Quote(Traceback(at, len(lines) - 1, lines[-1]), _ranks(found))
    return None


def quotes_in(lines: Sequence[str], found: Sequence[Traceback], rank: int | None) -> list[Quote]:
    """The tracebacks among `found` that a log only quotes from other ranks, in order.

    `rank`: the rank that wrote the log; what it quotes of itself is left out.
    """
    quotes = [quote for one in found[-MOST:] if (quote := quote_of(lines, one)) is not None]
    return [one for one in quotes if rank is None or one.ranks != (rank,)]


def own_among(
    lines: Sequence[str], found: Sequence[Traceback], quotes: Sequence[Quote], rank: int | None
) -> Traceback | None:
    """The writer's own traceback among those that torch's distributed checkpoint has collected of all ranks that failed; None where it is not one of them.

    `quotes`: those of the others, the last of which ends the log. Each rank prints all of them, in the order of ranks.
    """
    upto = next(place for place, one in enumerate(found) if one is quotes[-1].found)
    for one in reversed(found[: upto + 1]):
        header = _HEADER.search(lines[one.start])
        if header is None or not header["dcp"]:
            return None
        if int(header["dcp"]) == rank:
            return one
    return None


def error_of_quotes(
    lines: Sequence[str], found: Sequence[Traceback], quotes: Sequence[Quote], source: str
) -> RankError:
    """The error of a rank whose log ends with quoted tracebacks of other ranks.

    It accuses those whose quoted error is a failure of their own.
    """
    last = quotes[-1].found
    inside = {one.found.start for one in quotes}
    around = next((one for one in reversed(found) if one.start not in inside and one.end < last.start), None)  # fmt: skip
    texts = {one: whole_error(lines, one.found.end, one.found.error) for one in quotes}
    own = [one for one, text in texts.items() if blame_of(text) is Blame.OWN]
    quoted = safe_line((own or quotes)[-1].found.error, 200)
    head = f"{safe_line(around.error, 160)} … quoting {quoted}" if around else quoted
    return RankError(
        error=head,
        lines=tuple(safe_line(line, 400) for line in lines[max(0, last.end - MAX_LINES) : last.end + 1]),
        source=source,
        blames_peer=True,
        accuses=_of_quotes(own, quoted),
    )  # fmt: skip


def _of_quotes(own: Sequence[Quote], quoted: str) -> Accusation | None:
    ranks = tuple(dict.fromkeys(rank for one in own for rank in one.ranks))
    return Accusation(ranks=ranks, did=f"raised {quoted}", quoted=quoted) if ranks else None


def error_of_quote(
    quote: Quote, words: str, error: str, lines: tuple[str, ...], source: str
) -> RankError:
    """As `error_of_quotes`, for a single quoted traceback."""
    ended = [line for line in words.split("\n")[quote.found.start + 1 :] if line.strip() and not line.startswith(" ")]  # fmt: skip
    quoted = safe_line(next((line for line in reversed(ended) if line != error), ""), 200)
    own = [quote] if quoted and blame_of(quoted) is Blame.OWN else []
    return RankError(error=error, lines=lines, source=source, blames_peer=True, accuses=_of_quotes(own, quoted))  # fmt: skip


def _ranks(found: re.Match[str]) -> tuple[int, ...]:
    numbers = (one for part in found.groups() if part for one in _NUMBER.findall(part))
    return tuple(dict.fromkeys(int(one) for one in numbers))[:MOST]
