"""A rank, or a worker of it, was killed for memory or ran out of device memory, while the others wait for it."""

import msgspec

from mldebug.core.model import ClassifiedRank, Confidence, Fault, Finding, Role, Verdict
from mldebug.core.plugins import NoOptions, create_all
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.classify.gpus.gpu_faults import fitting
from mldebug.diagnosis.detectors import Detector
from mldebug.diagnosis.exits.cuda_memory import DeviceMemory, device_memory
from mldebug.diagnosis.exits.memory_text import memory_sentence, memory_steps
from mldebug.diagnosis.exits.words.tracebacks import went_on
from mldebug.diagnosis.raised import own_lines
from mldebug.jobs.logs.parser import LogParser

KILLS = frozenset({"oom_kill"})
LAST_WORDS = 40  # lines of a rank's log


class OutOfMemory:
    """Blames the rank that was killed for lack of memory, or whose worker was, or whose last lines show a lack of GPU memory."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where other ranks wait for a rank that ran out of memory; None otherwise."""
        if case.moved or not case.waiting:
            return None
        return self._killed(case) or self._device(case)

    def _killed(self, case: Case) -> Finding | None:
        stopped_at = case.taken_at - case.quiet_seconds if case.quiet_seconds > 0 else None
        fits = fitting(case.faults, stopped_at, case.taken_at, kinds=KILLS, gap=case.usual_gap)
        for fault, prompt in fits:
            victim = next((rank for rank in case.suspects if rank.rank == fault.rank), None)
            if victim is None or not _hit(victim, fault):
                continue
            sure = prompt and fault.trusted and victim.is_.role in (Role.EXITED, Role.MISSING)
            finding = blame(
                case,
                Verdict.OUT_OF_MEMORY,
                (victim,),
                ("dmesg -T | grep -iE 'oom-kill|killed process' | tail",),
                confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
                lead=f"rank {victim.rank} {victim.is_.doing}: {fault.words}",
            )
            return msgspec.structs.replace(finding, evidence=(fault.words, *finding.evidence))
        return None

    def _device(self, case: Case) -> Finding | None:
        """A rank that does not wait and whose own log ends with a lack of device memory: it may hang while it cleans up."""
        lacking = [(rank, memory) for rank in case.suspects if (memory := _last_words(case, rank))]
        if len(lacking) != 1:
            return None
        (rank, memory) = lacking[0]
        words = memory_sentence(memory)
        finding = blame(
            case,
            Verdict.OUT_OF_MEMORY,
            (rank,),
            memory_steps(memory),
            confidence=Confidence.LOW if memory.likely else Confidence.MEDIUM,
            lead=f"rank {rank.rank} {rank.is_.doing} after {words}",
        )
        return msgspec.structs.replace(finding, evidence=(f"its log: {words}", *finding.evidence))


def _hit(victim: ClassifiedRank, fault: Fault) -> bool:
    """The process itself is gone, or one of its children was killed and it waits for one; not for one that lives and is stuck."""
    if fault.by == "process":
        return victim.is_.role in (Role.EXITED, Role.MISSING)
    waits = victim.is_.name.startswith(("dataloader", "child_wait"))
    return fault.by == "child" and waits and victim.is_.worker_pid is None


def _last_words(case: Case, rank: ClassifiedRank) -> DeviceMemory | None:
    """The lack of memory that its own log ends with; not one that it caught: it went on, or made a step, after it."""
    lines = own_lines(case, rank)[-LAST_WORDS:]
    found = [(at, memory) for at, line in enumerate(lines) if (memory := device_memory(line))]
    if not found:
        return None
    after = lines[found[-1][0] + 1 :]
    steps = LogParser(create_all("logs")).feed("".join(f"{line}\n" for line in after).encode())
    return None if went_on(after) or steps else found[-1][1]


def create(options: NoOptions) -> Detector:
    """Build the detector `out_of_memory`: a rank, or a worker of it, was killed for memory or ran out of device memory, while the others wait for it."""
    return OutOfMemory()
