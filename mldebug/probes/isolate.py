"""From trials of pairs to the bad member (a node or GPU) or link.

Pure; in doubt nobody is named.

A member that took part in a good pair is cleared. A member is named where it was in no good pair,
and its pairs are bad with all others (or with at least three), of whom at least two are cleared. A
link is named where its pair is bad and both ends are cleared (or work with two others, where the
pair never works); not where it is merely slow and good pairs were slow in some of their trials,
too, as this may be chance. Whatever else is bad is reported without a name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from mldebug.core.model import ReportData
from mldebug.probes.pairs import (
    USUAL,
    JudgedPairs,
    Pair,
    PairLimits,
    Trial,
    hurried,
    judge_pairs,
    outcome_words,
    rate_words,
)

ENOUGH = 3  # bad pairs that name a member when not all were tried
CLEARED = 2  # of them with members that are cleared
FEW = 2  # names in a small world; more of them mean that something else is the matter


class IsolationCulprit(ReportData, frozen=True, kw_only=True):
    """A member (node or GPU) or a link that was found bad, with the evidence."""

    kind: Literal["member", "link"]
    members: tuple[str, ...]
    evidence: str


class Isolation(ReportData, frozen=True, kw_only=True):
    """The result of `mldebug probe isolate`.

    `suspects`: members or links that may be bad and could not be told apart.
    """

    outcome: Literal["fine", "found", "unknown"]
    sentence: str
    culprits: tuple[IsolationCulprit, ...] = ()
    suspects: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()  # pairs that are neither good nor bad
    best: dict[str, float] = {}  # by path, bytes per second


def isolate(
    members: Sequence[str],
    trials: Iterable[Trial],
    limits: PairLimits = USUAL,
    absent: Mapping[str, str] = {},
) -> Isolation:
    """Find the bad ones among `members` (nodes or GPUs) from trials.

    `absent`: members that did not take part, with the reason; they count as bad.
    """
    all_ = list(trials)
    culprits = [
        IsolationCulprit(kind="member", members=(name,), evidence=why)
        for name, why in absent.items()
    ]
    alone = _alone(all_)
    if len(alone) == len(members) > 1:  # what all have in common is the fault of none of them
        suspects = tuple(f"{one.members[0]}: {one.evidence}" for one in alone)
        return Isolation(outcome="unknown", sentence=_unknown(suspects), suspects=suspects)
    culprits += alone
    out = {name for culprit in culprits for name in culprit.members}
    left = [name for name in members if name not in out]
    judged = judge_pairs([one for one in all_ if not out & set(one.members)], limits)
    named = _few(_members(left, judged), _links(left, judged), max(FEW, len(left) // 4))
    explained = _explained(judged, named)
    rest = sorted((one for one in judged.bad if one not in explained), key=sorted)
    return _answer(left, judged, [*culprits, *named], rest, _together(all_, out))


def _few(
    members: list[IsolationCulprit], links: list[IsolationCulprit], most: int
) -> list[IsolationCulprit]:
    """The names, if there are few: many bad links at once are two racks or noise, many bad members a wrong comparison."""
    if len(members) > most:
        return []
    return members + links if len(members) + len(links) <= most else members


def _alone(trials: Iterable[Trial]) -> list[IsolationCulprit]:
    """Members that failed alone in all of their tries, or had wrong values in any of them."""
    tries: dict[str, list[Trial]] = {}
    singles = [trial for trial in trials if len(trial.members) == 1]
    for single in singles:
        if not hurried(single, singles):
            tries.setdefault(single.members[0], []).append(single)
    return [
        IsolationCulprit(
            kind="member", members=(name,), evidence=f"alone it {outcome_words(bad[0])}"
        )
        for name, some in tries.items()
        if (bad := [one for one in some if one.outcome == "wrong"])
        or (bad := some if all(one.outcome != "measured" for one in some) else [])
    ]


def _cleared(judged: JudgedPairs) -> frozenset[str]:
    return frozenset(name for pair in judged.good for name in pair)


def _working(left: Sequence[str], judged: JudgedPairs) -> frozenset[str]:
    """Members that work with two others or more, however well."""
    some = judged.good | judged.unsure
    return frozenset(name for name in left if len(judged.of(name, some)) > 1)


def _members(left: Sequence[str], judged: JudgedPairs) -> list[IsolationCulprit]:
    cleared, working, found = _cleared(judged), _working(left, judged), []
    for name in left:
        bad = judged.of(name, judged.bad - judged.late)
        if name in cleared or judged.of(name, judged.unsure | judged.chance):
            continue
        partners = [next(iter(pair - {name})) for pair in bad]
        enough = len(bad) in range(min(ENOUGH, len(left) - 1), len(left))
        well = cleared | working if judged.plain.issuperset(bad) else cleared
        if enough and len(well.intersection(partners)) >= CLEARED:
            evidence = (
                f"all of its {len(bad)} pairs are bad: with {partners[0]} it {judged.why[bad[0]]}"
            )
            found.append(IsolationCulprit(kind="member", members=(name,), evidence=evidence))
    return found


def _links(left: Sequence[str], judged: JudgedPairs) -> list[IsolationCulprit]:
    """Bad pairs whose ends both do well with others; for a plainly bad pair it is enough that they work with two others."""
    order = {name: number for number, name in enumerate(left)}
    well, working = _cleared(judged), _working(left, judged)
    return [
        IsolationCulprit(
            kind="link",
            members=tuple(sorted(pair, key=order.__getitem__)),
            evidence=f"the pair {judged.why[pair]}; both do well with others",
        )
        for pair in sorted(judged.bad, key=sorted)
        if pair <= (well | working if pair in judged.plain else well)
        and pair not in judged.chance | judged.late
    ]


def _explained(judged: JudgedPairs, named: Iterable[IsolationCulprit]) -> set[Pair]:
    explained: set[Pair] = set()
    for one in named:
        if one.kind == "link":
            explained.add(frozenset(one.members))
        else:
            explained.update(judged.of(one.members[0], judged.bad))
    return explained


def _together(trials: Iterable[Trial], out: set[str]) -> str:
    """How a larger group failed in which no named member took part; "" where none did."""
    for trial in trials:
        if len(trial.members) > 2 and trial.outcome != "measured" and not out & set(trial.members):
            return f"all {len(trial.members)} together: it {outcome_words(trial)}"
    return ""


def _answer(
    left: Sequence[str],
    judged: JudgedPairs,
    named: list[IsolationCulprit],
    rest: Sequence[Pair],
    together: str,
) -> Isolation:
    suspects = [f"{_words(pair, left)} {judged.why[pair]}" for pair in rest]
    suspects += [together] if together and not named else []
    uncleared = [] if named or suspects else sorted(set(left) - _cleared(judged), key=left.index)
    hidden = judged.noisy and all(judged.of(name, judged.unsure) for name in uncleared)
    unsure = [f"{_words(pair, left)} {judged.why[pair]}" for pair in _doubts(judged, named)]
    outcome: Literal["fine", "found", "unknown"] = "fine"
    if named:
        outcome, sentence = "found", _found(named, rest)
    elif suspects:
        outcome, sentence = "unknown", _unknown(suspects)
    elif (uncleared and not hidden) or not left:
        who = f"{', '.join(uncleared[:4])} did well with nobody" if left else "nobody took part"
        outcome, sentence = "unknown", f"cannot tell who is bad: {who}"
    else:
        sentence = f"no fault found: {len(judged.good)} of {len(judged.why)} pairs do equally well"
        sentence += ", none is bad, and other work hides what is less" if uncleared else ""
    return Isolation(
        outcome=outcome,
        sentence=sentence,
        culprits=tuple(named),
        suspects=tuple(suspects),
        unsure=tuple(unsure),
        best=judged.best,
    )


def _doubts(judged: JudgedPairs, named: Sequence[IsolationCulprit]) -> list[Pair]:
    out = {one.members[0] for one in named if one.kind == "member"}
    return sorted((pair for pair in judged.unsure if not out & pair), key=sorted)


def _words(pair: Pair, order: Sequence[str]) -> str:
    return " - ".join(sorted(pair, key=order.index))


def _found(named: Sequence[IsolationCulprit], rest: Sequence[Pair]) -> str:
    names = [
        f"the link {' - '.join(one.members)}" if one.kind == "link" else one.members[0]
        for one in named
    ]
    more = "; what else is bad cannot be told" if rest else ""
    return f"bad: {', '.join(names)}{more}"


def _unknown(suspects: Sequence[str]) -> str:
    more = f", and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    return f"cannot tell who is bad: {suspects[0]}{more}"


MAX_LINES = 12


def progress_lines(number: int, trials: Sequence[Trial]) -> Iterator[str]:
    """One line for each trial of step `number`."""
    for trial in trials:
        result = rate_words(trial.bandwidth) if trial.bandwidth is not None else trial.outcome
        how = "fine" if result == "measured" else result.replace("_", " ")
        reason = f" ({trial.reason})" if trial.reason else ""
        who = " - ".join(trial.members) if len(trial.members) < 3 else f"all {len(trial.members)}"
        yield f"step {number}: {who}: {how}{reason}"


def isolation_lines(answer: Isolation) -> Iterator[str]:
    """The result in lines: the sentence, the evidence, and what remains uncertain."""
    yield answer.sentence
    for culprit in answer.culprits:
        yield f"  {' - '.join(culprit.members)}: {culprit.evidence}"
    for head, some in (("cannot be result apart", answer.suspects), ("unsure", answer.unsure)):
        for text in some[:MAX_LINES]:
            yield f"  {head}: {text}"
        if len(some) > MAX_LINES:
            yield f"  {head}: {len(some) - MAX_LINES} more"
