"""Whether a job may start on these nodes: what each node found, and what differs between them or from the last good run. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from mldebug.core.model import ReportData
from mldebug.core.ranksets import fold_nodes
from mldebug.core.text import plural
from mldebug.core.units import size_words
from mldebug.jobs.run_records.model import NOT_SET
from mldebug.probes.checks import NodeCheck

SAME = ("python", "torch", "nccl", "driver", "GPUs")
"""What must be the same on all nodes of a job. Of the rest (other packages, variables, kernels) a difference is told and stops nothing."""

CLOCKS_APART = 1.0  # seconds beyond what the question itself took
MOST_NOTES = 12
SHM = "/dev/shm"  # noqa: S108 - its name: nothing is written there
LEAST_SHM = (
    1 << 30
)  # bytes: containers have 64 MiB by default, too little for a DataLoader and for NCCL
LEAST_INODES = 10_000

Level = Literal["failed", "note"]


class NodeFindings(ReportData, frozen=True, kw_only=True):
    """What one node found about itself. `facts`: driver, GPUs, kernel … by name; `packages` and `environment` as in `RunRecord`; `clock`:
    its unix time when it had done all, `seconds`: how long that took. `since_good`: what is not there as it was when the job last ended
    well, in sentences.
    """

    node: str
    checks: tuple[NodeCheck, ...] = ()
    facts: dict[str, str] = {}
    packages: dict[str, str] = {}
    environment: dict[str, str] = {}
    clock: float = 0.0
    seconds: float = 0.0
    since_good: tuple[str, ...] = ()


class CheckedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one node. `sent`, `came`: when the question was sent and the answer came, unix seconds by the clock of the node
    that asked.
    """

    findings: NodeFindings
    sent: float
    came: float


class PreflightFinding(ReportData, frozen=True, kw_only=True):
    """One thing that stands against a start, or is worth a word. `nodes`: folded; "" for all together."""

    level: Level
    sentence: str
    nodes: str = ""


class Preflight(ReportData, frozen=True, kw_only=True):
    """Whether the job may start, with the reasons."""

    go: bool
    verdict: str
    nodes: str
    findings: tuple[PreflightFinding, ...]
    answers: tuple[NodeFindings, ...]


class FolderSpace(msgspec.Struct, frozen=True, kw_only=True):
    """What a node saw of one folder. `stuck`: seconds for which a call there has not come back; `wrong`: why it cannot be used; sizes in
    bytes; `inodes_free` None where the filesystem does not count them; `quota_left`: of this user and group, None where there is none.
    """

    path: str
    available: int = 0
    inodes_free: int | None = None
    quota_left: int | None = None
    stuck: float = 0.0
    wrong: str = ""


def folder_checks(spaces: Sequence[FolderSpace], checkpoint: int, checkpoints: int) -> Iterator[NodeCheck]:  # fmt: skip
    """The check of each folder that the job needs. The first is where checkpoints go: it must have room for so many of `checkpoint`
    bytes each; 0: not known.
    """
    for number, one in enumerate(spaces):
        problem = one.wrong
        if one.stuck:
            problem = f"does not answer: a call there has not come back for {one.stuck:.0f} s"
        elif not problem and one.inodes_free is not None and one.inodes_free < LEAST_INODES:
            problem = f"has {plural(one.inodes_free, 'inode')} left"
        elif not problem and number == 0:
            problem = _too_small(one, checkpoint, checkpoints)
        words = problem or f"is there and takes writes, {size_words(one.available)} left"
        yield NodeCheck(stage="folder", state="failed" if problem else "fine", sentence=f"{one.path} {words}")  # fmt: skip


def _too_small(one: FolderSpace, checkpoint: int, checkpoints: int) -> str:
    """Why checkpoints have no room there; "" where they have."""
    if one.quota_left == 0:
        return "has nothing left of a quota"
    room = f"{plural(checkpoints, 'checkpoint')} of {size_words(checkpoint)}"
    if one.available < checkpoint * checkpoints:
        return f"has {size_words(one.available)} left, too little for {room}"
    if one.quota_left is not None and one.quota_left < checkpoint * checkpoints:
        return f"has {size_words(one.quota_left)} left of a quota, too little for {room}"
    return ""


def shm_check(size: int, available: int) -> NodeCheck:
    """The check of /dev/shm, over which DataLoader workers and the ranks of a node talk. Bytes; `size` 0: it is not there."""
    if size and min(size, available) >= LEAST_SHM:
        return NodeCheck(stage="shm", state="fine", sentence=f"{SHM} has {size_words(available)} left")  # fmt: skip
    words = "is not there" if not size else f"has {size_words(available)} of {size_words(size)} left"  # fmt: skip
    return NodeCheck(stage="shm", state="failed", sentence=f"{SHM} {words}: a container needs --shm-size or --ipc=host")  # fmt: skip


def judge(answers: Sequence[CheckedNode], silent: Mapping[str, str]) -> Preflight:
    """Whether a job may start. `silent`: why a node did not answer, by its name."""
    findings = [
        PreflightFinding(level="failed", sentence=f"did not answer: {why}", nodes=node)
        for node, why in sorted(silent.items())
    ]
    findings += _of_checks(answers)
    findings += _between_nodes(answers)
    findings += _clocks(answers)
    findings += _since_good(answers)
    failed = [one for one in findings if one.level == "failed"]
    nodes = fold_nodes((*(one.findings.node for one in answers), *silent))
    if failed:
        rest = f" (+{len(failed) - 1} more)" if len(failed) > 1 else ""
        verdict = f"no go: {_who(failed[0])}{failed[0].sentence}{rest}"
    else:
        verdict = f"go: {plural(len(answers), 'node')} checked"
    return Preflight(
        go=not failed,
        verdict=verdict,
        nodes=nodes,
        findings=tuple(sorted(findings, key=lambda one: one.level == "note")),
        answers=tuple(one.findings for one in answers),
    )


def words(one: PreflightFinding) -> str:
    """A finding of the checks before a job, as one line that begins with whom it is about."""
    return f"{_who(one)}{one.sentence}"


def _who(one: PreflightFinding) -> str:
    return f"{one.nodes}: " if one.nodes else ""


def _of_checks(answers: Sequence[CheckedNode]) -> Iterator[PreflightFinding]:
    """Failed checks; the same sentence of many nodes is one."""
    by_sentence: dict[str, list[str]] = defaultdict(list)
    for one in answers:
        for check in one.findings.checks:
            if check.state == "failed":
                by_sentence[check.sentence].append(one.findings.node)
    for sentence, nodes in by_sentence.items():
        yield PreflightFinding(level="failed", sentence=sentence, nodes=fold_nodes(nodes))


def _between_nodes(answers: Sequence[CheckedNode]) -> Iterator[PreflightFinding]:
    """What is not the same everywhere. A table that a node could not read is left out of the comparison: its check says so."""
    notes: list[PreflightFinding] = []
    for table in ("facts", "packages", "environment"):
        known = {one.findings.node: getattr(one.findings, table) for one in answers}
        known = {node: values for node, values in known.items() if values}
        for name in sorted({name for values in known.values() for name in values}):
            nodes: dict[str, list[str]] = defaultdict(list)
            for node, values in known.items():
                nodes[values.get(name, NOT_SET)].append(node)
            if len(nodes) < 2:
                continue
            sentence = f"{name}: {_by_value(nodes)}"
            if name in SAME:
                yield PreflightFinding(
                    level="failed", sentence=f"not the same on all nodes: {sentence}"
                )
            else:
                notes.append(
                    PreflightFinding(level="note", sentence=f"differs between nodes: {sentence}")
                )
    yield from _few(notes)


def _by_value(nodes: Mapping[str, Sequence[str]]) -> str:
    """`2.8.0 on n[1-7], 2.9.1 on n8`, what most have first."""
    ordered = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = [f"{value} on {fold_nodes(names)}" for value, names in ordered[:4]]
    return ", ".join(shown) + (f" and {len(ordered) - 4} more values" if len(ordered) > 4 else "")


def _clocks(answers: Sequence[CheckedNode]) -> Iterator[PreflightFinding]:
    """Nodes whose clock differs from that of the node that asked by more than the question took."""
    for one in answers:
        late, early = one.findings.clock - one.came, one.sent - one.findings.clock
        apart = max(late, early)
        if one.findings.clock and apart > CLOCKS_APART:
            which = "ahead" if late > early else "behind"
            yield PreflightFinding(level="note", sentence=f"its clock is {apart:.0f} s or more {which}", nodes=one.findings.node)  # fmt: skip


def _since_good(answers: Sequence[CheckedNode]) -> Iterator[PreflightFinding]:
    """What is not as it was when this job last ended well; what all nodes say alike is told of all together."""
    by_sentence: dict[str, list[str]] = defaultdict(list)
    for one in answers:
        for sentence in one.findings.since_good:
            by_sentence[sentence].append(one.findings.node)
    yield from _few(
        [
            PreflightFinding(level="note", sentence=sentence, nodes=fold_nodes(nodes) if len(nodes) < len(answers) else "")
            for sentence, nodes in by_sentence.items()
        ]
    )  # fmt: skip


def _few(notes: Sequence[PreflightFinding]) -> Iterator[PreflightFinding]:
    yield from notes[:MOST_NOTES]
    if len(notes) > MOST_NOTES:
        yield PreflightFinding(level="note", sentence=f"and {len(notes) - MOST_NOTES} more differences: --json has all values")  # fmt: skip
