"""The cases of tests/fixtures/field: recorded evidence with its right answer, judged, and all of them as a table.

Each folder tests/fixtures/field/KIND has a `cases.yaml`, a list of cases; README.md there says what a case holds.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from mldebug.capture.flight_recorder.analysis import analyse
from mldebug.capture.flight_recorder.files.folder import read_folder
from mldebug.capture.nccl_ras.answer import parse
from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import MldebugError
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import safe_line
from mldebug.core.report_model import Report
from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.fieldexits import outcome_of
from shared.diagnosis.lastwords import (
    PLAYS,
    SPEAKER,
    WORLD,
    LastWords,
    all_last_words,
    known_outcomes,
)

FIELD = Path(__file__).parents[2] / "fixtures" / "field"
HEAD = """# Cases from the field

Evidence in the form in which other people posted it, with the right answer and ours. The inputs lie in `tests/fixtures/field`; numbers, hosts and
paths in them are made up. *Nobody* is a right answer wherever the evidence does not tell: [a wrong name is a defect](verdicts.md), silence is not.
A rank in brackets is named at `low`: one sign, and no proof.

This page is made by `make field-cases`; a test holds it to what the code answers.
"""


_SURE = ("", "low", "medium", "high")
WORDS_HEAD = f"""## Last words

Rank {SPEAKER} of {WORLD} ends first and writes this. Each is played in {len(PLAYS)} ways: the others wait, or lose their peer, or one of them hangs; in one log with torch's marks or
without, or in a file for each rank; line by line or mixed. The table counts whom the plays name.

| case | last words | right answer | ours | posted in |
|---|---|---|---|---|
"""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input and what is right about it."""

    name: str
    how: str  # of ANSWERS
    input: str  # a file or folder beside cases.yaml
    what: str  # the input in words
    right: str  # the right answer in words
    named: tuple[tuple[int, ...], ...] | None = None  # acceptable lists of ranks; [] is nobody
    say: tuple[str, ...] = ()  # patterns that the answer's words must match
    never: tuple[str, ...] = ()  # patterns that they must not
    at_most: str = ""  # the highest confidence at which somebody may be named; "": any
    or_refuse: bool = False  # to refuse the input in one sentence is right, too
    ranks: int | None = None  # how many ranks the answer must count
    world: int = 4  # of `exit`: the job's ranks
    source: str = "own"  # where such evidence was posted


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What we say: the verdict or kind, whom it names, how surely, in which words."""

    verdict: str
    named: tuple[int, ...] = ()
    confidence: str = ""
    words: str = ""
    ranks: int | None = None
    refused: bool = False


class FieldCases(msgspec.Struct, frozen=True):
    """The cases of one folder."""

    folder: Path
    cases: tuple[Case, ...]


def all_cases() -> Iterator[FieldCases]:
    """Every folder with its cases, by name."""
    for file in sorted(FIELD.glob("*/cases.yaml")):
        yield FieldCases(file.parent, msgspec.yaml.decode(file.read_bytes(), type=tuple[Case, ...]))


# --- answers -----------------------------------------------------------------------------------------


def answer(folder: Path, case: Case) -> Answer:
    """Judge one case; a refusal is an answer, any other error is not."""
    try:
        return ANSWERS[case.how](folder / case.input, case)
    except MldebugError as error:
        return Answer(verdict="refused", words=str(error), refused=True)


@cache
def known_answer(folder: Path, case: Case) -> Answer:
    """The same, once: the page and the test of each case ask."""
    return answer(folder, case)


@cache
def known_report(path: Path) -> Report:
    """Of evidence in FIELD, which does not change while tests run."""
    return judge(read_evidence(path)).report


def _dumps(path: Path, case: Case) -> Answer:
    """As `mldebug diagnose FOLDER` does."""
    report = known_report(path) if FIELD in path.parents else judge(read_evidence(path)).report
    found = report.diagnosis
    return Answer(
        verdict=str(found.verdict),
        named=_ranks(one.rank for one in found.culprits),
        confidence=str(found.confidence),
        words=" ".join((str(found.verdict), found.summary, *found.evidence, *report.remarks, *(one.reason for one in report.gaps))),
        ranks=len(report.ranks),
    )  # fmt: skip


def _flight(path: Path, case: Case) -> Answer:
    """As `mldebug flight-recorder FOLDER` does."""
    folder = read_folder(path)
    found = analyse(folder.records, folder.unreadable)
    words = " ".join((found.kind, found.explanation, *found.evidence))
    return Answer(verdict=found.kind, named=_ranks(found.culprits), words=words, ranks=len(folder.records))  # fmt: skip


def _exit(path: Path, case: Case) -> Answer:
    """As an agent judges the end of a job that ends by this plan."""
    outcome = outcome_of(path, case.world)
    found = outcome.finding
    if found is None:
        return Answer(verdict=outcome.kind, words=outcome.sentence)
    return Answer(
        verdict=str(found.verdict),
        named=_ranks(one.rank for one in found.culprits),
        confidence=str(found.confidence),
        words=" ".join((str(found.verdict), found.summary, *found.evidence)),
    )


def _ras(path: Path, case: Case) -> Answer:
    """An answer of NCCL RAS, which names nobody by itself."""
    return Answer(verdict="parsed", words=str(msgspec.to_builtins(parse(path.read_bytes()))))


ANSWERS: dict[str, Callable[[Path, Case], Answer]] = {
    "dumps": _dumps,
    "flight": _flight,
    "exit": _exit,
    "ras": _ras,
}


def _ranks(found: object) -> tuple[int, ...]:
    return tuple(sorted({one for one in found if isinstance(one, int)}))  # type: ignore[attr-defined]


def faults_of(case: Case, given: Answer) -> list[str]:
    """What is wrong with an answer, a sentence each; none where it is right."""
    if given.refused:
        return [] if case.or_refuse else [f"refused: {given.words}"]
    found = []
    if case.named is not None and given.named not in case.named:
        found.append(f"names {list(given.named)}, right is {' or '.join(str(list(one)) for one in case.named)}")  # fmt: skip
    if given.named and _SURE.index(given.confidence) > _SURE.index(case.at_most or _SURE[-1]):
        found.append(f"{given.confidence}, at most {case.at_most} is right")
    if case.ranks is not None and given.ranks != case.ranks:
        found.append(f"counts {given.ranks} ranks in place of {case.ranks}")
    found += [f"does not say {one!r}" for one in case.say if not re.search(one, given.words)]
    found += [f"says {one!r}" for one in case.never if re.search(one, given.words)]
    return found


# --- the page ----------------------------------------------------------------------------------------


def page() -> str:
    """docs/field-cases.md."""
    parts = [HEAD]
    for some in all_cases():
        rows = [_row(one, known_answer(some.folder, one)) for one in some.cases]
        parts.append(f"\n## {some.folder.name.capitalize()}\n\n| input | what it is | right answer | ours | confidence | posted in |\n|---|---|---|---|---|---|\n")  # fmt: skip
        parts += rows
    parts.append(f"\n{WORDS_HEAD}")
    parts += [_words_row(one) for one in all_last_words()]
    return "".join(parts)


def _row(case: Case, given: Answer) -> str:
    who = f"ranks {fold_ranks(given.named)}" if len(given.named) > 1 else f"rank {given.named[0]}" if given.named else "nobody"  # fmt: skip
    who = f"({who})" if given.named and given.confidence == "low" else who
    ours = "refused, with the way out" if given.refused else f"`{given.verdict}`: {who}"
    cells = (f"`{case.name}`", case.what, case.right, ours, given.confidence or "-", case.source)
    return "| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |\n"


def _words_row(case: LastWords) -> str:
    """One case of last words, with whom its plays name, most often first."""
    found = Counter(_named(outcome) for _, outcome in known_outcomes(case))
    ours = ", ".join(f"{who} {number} times" for who, number in found.most_common())
    right = {"own": f"rank {SPEAKER}", "peer": f"never rank {SPEAKER}", "unclear": f"rank {SPEAKER} at `low`, or nobody"}[case.fault]  # fmt: skip
    right += "".join(f", or rank {rank}" for rank in case.accused)
    right += ", or nobody" if case.accept and () in case.accept and case.fault == "own" else ""
    words = (case.words or case.raw or case.exit).strip().partition("\n")[0]
    cells = (f"`{case.name}`", f"`{safe_line(words, 110)}`", right, ours, case.source)
    return "| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |\n"


def _named(outcome: ExitOutcome) -> str:
    found = outcome.finding
    ranks = _ranks(one.rank for one in found.culprits) if found else ()
    return f"rank {fold_ranks(ranks)} ({found.confidence})" if found and ranks else "nobody"


def main() -> None:
    """Print every case that is not answered rightly, as JSON lines."""
    for some in all_cases():
        for case in some.cases:
            faults = faults_of(case, answer(some.folder, case))
            if faults:
                print(json.dumps({"case": f"{some.folder.name}/{case.name}", "faults": faults}))


if __name__ == "__main__":
    main()
