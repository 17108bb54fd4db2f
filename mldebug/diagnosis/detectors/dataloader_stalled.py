"""A rank waits for a DataLoader worker that does not deliver, while the others wait for the rank."""

import msgspec

from mldebug.core.model import ClassifiedRank, Culprit, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.detectors import Detector


class DataloaderStalled:
    """Blames the worker process that differs from its idle siblings, else the rank."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where a rank stands in the data loader and waits; None otherwise."""
        ranks = case.named("dataloader", "dataloader_exit")
        if not ranks or not case.stuck:
            return None
        pid = ranks[0].is_.worker_pid or ranks[0].pid
        steps = (f"ls -l /proc/{pid}/fd  # the files that it has open",)
        finding = blame(case, Verdict.DATALOADER_STALLED, ranks, steps)
        workers = {rank.rank: _culprit(rank) for rank in ranks}
        named = tuple(workers.get(one.rank, one) if one.rank is not None else one for one in finding.culprits)  # fmt: skip
        return msgspec.structs.replace(finding, culprits=named)


def _culprit(rank: ClassifiedRank) -> Culprit:
    worker = rank.is_.worker_pid
    return Culprit(
        kind="worker" if worker else "rank",
        rank=rank.rank,
        node=rank.node,
        pid=worker or rank.pid,
        reason=rank.is_.doing,
    )


def create(options: NoOptions) -> Detector:
    """Build the detector `dataloader_stalled`: a rank waits for a DataLoader worker that does not deliver, while the others wait for the rank."""
    return DataloaderStalled()
