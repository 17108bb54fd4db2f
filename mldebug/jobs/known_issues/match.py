"""Applies all rules to all ranks of a job: one `KnownIssue` for each issue, however many ranks have it. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Job, MeasuredData, Remark
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.jobs.known_issues import log_rules, setting_rules, version_rules
from mldebug.jobs.known_issues.model import (
    IssueRule,
    JobFacts,
    NodeFacts,
    Software,
    Version,
    parse_version,
)
from mldebug.jobs.known_issues.nccl_log import NcclLogFacts

RULES: tuple[IssueRule, ...] = (*version_rules.RULES, *setting_rules.RULES, *log_rules.RULES)
HCA = "NCCL_IB_HCA"  # which ports NCCL may use
SETTINGS = tuple(sorted({HCA} | {name for rule in RULES for name in rule.reads}))
"""The allow-list: of an environment nothing else is kept."""
MAX_VALUE = 80  # characters of a setting
MAX_MESSAGE = 400
MAX_PIDS = 32  # named in one note
MAX_ISSUES = (
    32  # of one job: an issue whose text differs from rank to rank is listed once for each text
)


class RankSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that one rank has loaded, and the settings in its environment that the rules for known issues read."""

    rank: int
    software: Software = Software()
    settings: Mapping[str, str] = {}
    cores: int = 0  # see `Facts`


class KnownIssue(MeasuredData, frozen=True, kw_only=True):
    """A version or setting of a job that is known to cause trouble. No alert is raised for it, since most such jobs run well."""

    name: str
    message: str  # what was seen, and what is wrong with it
    todo: str
    source: str  # URL
    ranks: tuple[int, ...] = ()

    def line(self) -> str:
        """What is wrong and what to do, in one line; the source is left out."""
        return clean(f"{self.message} → {self.todo}", MAX_MESSAGE + 200)


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """Of an environment only the variables that the rules read, cleaned and cut for display."""
    return {name: clean(environ[name], MAX_VALUE) for name in SETTINGS if name in environ}


def find_known_issues(
    job: Job,
    ran: Iterable[RankSoftware],
    node: NodeFacts,
    nccl_log: NcclLogFacts | None = None,
    gpu: bool | None = None,
) -> tuple[KnownIssue, ...]:
    """The known issues of a job on this node, in the order of the rules, at most 32. `ran`: what each rank has loaded; `gpu`:
    whether a rank has a GPU open, None if unknown.
    """
    found: dict[tuple[str, str], tuple[IssueRule, list[int]]] = {}
    for facts, ranks in _alike(job, ran, node, nccl_log or NcclLogFacts()):
        facts = msgspec.structs.replace(facts, gpu=gpu)
        for rule in RULES:
            if finding := rule.finding(facts):
                found.setdefault((rule.name, finding), (rule, []))[1].extend(ranks)
    everybody = {rank.rank for rank in job.ranks}
    order = {rule.name: number for number, rule in enumerate(RULES)}
    issues = [
        _known_issue(rule, finding, ranks, everybody)
        for (_, finding), (rule, ranks) in found.items()
    ]
    return tuple(sorted(issues, key=lambda issue: (order[issue.name], issue.ranks)))[:MAX_ISSUES]


def remarks(job: Job, issues: Sequence[KnownIssue]) -> tuple[Remark, ...]:
    """The issues as remarks for a report, each with the pids of the ranks that have it."""
    pids = {rank.rank: rank.pid for rank in job.ranks}
    return tuple(
        Remark(
            kind=f"trap_{issue.name}",
            message=f"known trap: {issue.line()}",
            pids=tuple(pids[rank] for rank in issue.ranks if rank in pids)[:MAX_PIDS],
        )
        for issue in issues
    )


def _alike(
    job: Job, ran: Iterable[RankSoftware], node: NodeFacts, nccl_log: NcclLogFacts
) -> Iterator[tuple[JobFacts, list[int]]]:
    """The facts of each group of ranks that have the same versions and settings, and the ranks of that group."""
    groups: dict[tuple[Software, tuple[tuple[str, str], ...], int], list[int]] = {}
    for one in ran:
        given = {name: value for name, value in one.settings.items() if name != HCA}  # a rank's own
        same = (one.software, tuple(sorted(given.items())), one.cores)
        groups.setdefault(same, []).append(one.rank)
    sizes = [rank.local_world_size for rank in job.ranks if rank.local_world_size]
    here = max(sizes, default=len(job.ranks) + len(job.lost))  # some may not be seen, or not yet
    for (software, settings, cores), ranks in groups.items():
        facts = JobFacts(
            torch=parse_version(software.torch),
            nccl=_nccl(software, nccl_log),
            rocm=software.rocm,
            settings=dict(settings),
            cores=cores,
            several_ranks=job.world_size > 1,
            several_nodes=job.world_size > here,
            node=node,
            nccl_log=nccl_log,
        )
        yield facts, ranks


def _nccl(software: Software, nccl_log: NcclLogFacts) -> Version | None:
    """The version of the loaded library, else the one in the log: NCCL may be linked into PyTorch's own library."""
    return parse_version(software.nccl) or parse_version(nccl_log.version)


def _known_issue(
    rule: IssueRule, finding: str, ranks: list[int], everybody: set[int]
) -> KnownIssue:
    some = ranks if everybody - set(ranks) else []
    words = f"rank{'s' if len(some) > 1 else ''} {shorten_ranks(fold_ranks(some), 40)}: " if some else ""  # fmt: skip
    return KnownIssue(
        name=rule.name,
        message=clean(f"{words}{finding}: {rule.wrong}", MAX_MESSAGE),
        todo=rule.todo,
        source=rule.source,
        ranks=tuple(sorted(ranks)),
    )
