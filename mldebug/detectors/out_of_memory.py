"""A rank, or a worker of it, was killed for memory or ran out of device memory, while the others wait for it."""

import msgspec

from mldebug.endings.cudamemory import DeviceMemory, device_memory
from mldebug.endings.memorywords import memory_sentence, memory_steps
from mldebug.judging.case import Case, blame
from mldebug.judging.faults import fitting
from mldebug.model import ClassifiedRank, Confidence, Fault, Finding, Role, Verdict

KILLS = frozenset({"oom_kill"})
LAST_WORDS = 40  # lines of a rank's log


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class OutOfMemory:
    """Blames the rank that the kernel killed, or that lost a worker so, or whose last words tell a lack of device memory."""

    def judge(self, case: Case) -> Finding | None:
        """Speak where somebody waits, and memory is what a rank that does not wait ran out of."""
        if case.moved or not case.waiting:
            return None
        return self._killed(case) or self._device(case)

    def _killed(self, case: Case) -> Finding | None:
        stopped_at = case.taken_at - case.quiet_seconds if case.quiet_seconds > 0 else None
        for fault, prompt in fitting(case.faults, stopped_at, case.taken_at, kinds=KILLS):
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
        """A rank that does not wait and whose log ends with a lack of device memory: it may hang while it cleans up."""
        told = [(rank, memory) for rank in case.suspects if (memory := _last_words(rank))]
        if len(told) != 1:
            return None
        (rank, memory) = told[0]
        words = memory_sentence(memory)
        finding = blame(
            case,
            Verdict.OUT_OF_MEMORY,
            (rank,),
            memory_steps(memory),
            confidence=Confidence.MEDIUM,
            lead=f"rank {rank.rank} {rank.is_.doing} after {words}",
        )
        return msgspec.structs.replace(finding, evidence=(f"its log: {words}", *finding.evidence))


def _hit(victim: ClassifiedRank, fault: Fault) -> bool:
    """The process itself is gone, or one of its children was killed and it waits for one."""
    if fault.by == "process":
        return victim.is_.role in (Role.EXITED, Role.MISSING)
    return fault.by == "child" and victim.is_.name.startswith(("dataloader", "child_wait"))


def _last_words(rank: ClassifiedRank) -> DeviceMemory | None:
    lines = rank.capture.log.lines if rank.capture and rank.capture.log else ()
    found = [told for line in lines[-LAST_WORDS:] if (told := device_memory(line))]
    return found[-1] if found else None


def create(options: Options) -> OutOfMemory:
    """Build the detector."""
    return OutOfMemory()
