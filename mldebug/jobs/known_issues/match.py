"""All rules over all ranks of a job: one finding for each trap, however many ranks sit in it. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Job, Noun, Remark
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.jobs.known_issues import log_rules, setting_rules, version_rules
from mldebug.jobs.known_issues.model import Facts, NodeFacts, Rule, Software
from mldebug.jobs.known_issues.nccl_log import NcclSaid
from mldebug.jobs.known_issues.version import Version, parse_version

RULES: tuple[Rule, ...] = (*version_rules.RULES, *setting_rules.RULES, *log_rules.RULES)
SETTINGS = tuple(sorted({name for rule in RULES for name in rule.reads}))
"""The allow-list: of an environment nothing else is kept."""
MAX_VALUE = 80  # characters of a setting
MAX_MESSAGE = 400
MAX_PIDS = 32  # named in one note
MAX_TRAPS = 32  # of one job: what differs from rank to rank would be told once for each


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank runs, and with which settings."""

    rank: int
    software: Software = Software()
    settings: Mapping[str, str] = {}
    cores: int = 0  # see `Facts`


class Trap(Noun, frozen=True, kw_only=True):
    """One trap that a job sits in. Not an alarm: most such jobs go well."""

    name: str
    message: str  # what was seen, and what is wrong with it
    todo: str
    source: str  # URL
    ranks: tuple[int, ...] = ()

    def line(self) -> str:
        """All of it but the source, in one line."""
        return clean(f"{self.message} → {self.todo}", MAX_MESSAGE + 200)


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that the rules look at, harmless to show."""
    return {name: clean(environ[name], MAX_VALUE) for name in SETTINGS if name in environ}


def find_traps(
    job: Job,
    ran: Iterable[Ran],
    node: NodeFacts,
    said: NcclSaid | None = None,
    gpu: bool | None = None,
) -> tuple[Trap, ...]:
    """The traps of a job, in the order of the rules. `gpu`: of `Facts`."""
    found: dict[tuple[str, str], tuple[Rule, list[int]]] = {}
    for facts, ranks in _alike(job, ran, node, said or NcclSaid()):
        facts = msgspec.structs.replace(facts, gpu=gpu)
        for rule in RULES:
            if told := rule.tell(facts):
                found.setdefault((rule.name, told), (rule, []))[1].extend(ranks)
    everybody = {rank.rank for rank in job.ranks}
    order = {rule.name: number for number, rule in enumerate(RULES)}
    traps = [_trap(rule, told, ranks, everybody) for (_, told), (rule, ranks) in found.items()]
    return tuple(sorted(traps, key=lambda trap: (order[trap.name], trap.ranks)))[:MAX_TRAPS]


def remarks(job: Job, traps: Sequence[Trap]) -> tuple[Remark, ...]:
    """The same as notes for a report: they belong to the ranks, and to nobody's stall."""
    pids = {rank.rank: rank.pid for rank in job.ranks}
    return tuple(
        Remark(
            kind=f"trap_{trap.name}",
            message=f"known trap: {trap.line()}",
            pids=tuple(pids[rank] for rank in trap.ranks if rank in pids)[:MAX_PIDS],
        )
        for trap in traps
    )


def _alike(
    job: Job, ran: Iterable[Ran], node: NodeFacts, said: NcclSaid
) -> Iterator[tuple[Facts, list[int]]]:
    """Ranks that run the same with the same settings, together: of 64 ranks mostly all."""
    groups: dict[tuple[Software, tuple[tuple[str, str], ...], int], list[int]] = {}
    for one in ran:
        same = (one.software, tuple(sorted(one.settings.items())), one.cores)
        groups.setdefault(same, []).append(one.rank)
    sizes = [rank.local_world_size for rank in job.ranks if rank.local_world_size]
    here = max(sizes, default=len(job.ranks) + len(job.lost))  # some may not be seen, or not yet
    for (software, given, cores), ranks in groups.items():
        facts = Facts(
            torch=parse_version(software.torch),
            nccl=_nccl(software, said),
            rocm=software.rocm,
            settings=dict(given),
            cores=cores,
            several_ranks=job.world_size > 1,
            several_nodes=job.world_size > here,
            node=node,
            said=said,
        )
        yield facts, ranks


def _nccl(software: Software, said: NcclSaid) -> Version | None:
    """The library that is loaded, else what the log says: there NCCL is part of PyTorch's own library."""
    return parse_version(software.nccl) or parse_version(said.version)


def _trap(rule: Rule, told: str, ranks: list[int], everybody: set[int]) -> Trap:
    some = ranks if everybody - set(ranks) else []
    words = f"rank{'s' if len(some) > 1 else ''} {shorten_ranks(fold_ranks(some), 40)}: " if some else ""  # fmt: skip
    return Trap(
        name=rule.name,
        message=clean(f"{words}{told}: {rule.wrong}", MAX_MESSAGE),
        todo=rule.todo,
        source=rule.source,
        ranks=tuple(sorted(ranks)),
    )
