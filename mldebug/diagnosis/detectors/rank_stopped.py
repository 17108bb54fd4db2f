"""A rank is stopped by a signal, or held by a debugger, while the others wait for it."""

import shlex

from mldebug.core.model import ClassifiedRank, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.detectors import Detector


class RankStopped:
    """Blames ranks that a signal or a debugger has stopped (state T or t) or whose cgroup is frozen, as a paused container is; not where that is so for all ranks: then the job was paused on purpose."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where some, not all, living ranks are stopped, or the only rank of a job is; None otherwise, and where a waiting
        rank went on meanwhile.
        """
        stopped = case.named("stopped", "traced")
        if not stopped or len(stopped) == len(case.alive) > 1 or case.moved:
            return None
        if len(stopped) == len(case.alive) and case.job.world_size > 1:
            return None
        pids = " ".join(str(rank.pid) for rank in stopped[:8])
        if cgroup := frozen_by(stopped[0]):
            steps = [
                f"cat /sys/fs/cgroup{cgroup}/cgroup.events  # frozen 1; docker unpause, or echo 0 > cgroup.freeze",
                f"ps -o pid,user,args -p {pids}",
            ]
        elif stopped[0].is_.name == "traced":
            steps = [
                f"grep TracerPid /proc/{stopped[0].pid}/status  # who holds it",
                f"ps -o pid,user,args -p {pids}",
            ]
        else:
            steps = [
                f"ps -o pid,stat,lstart,args -p {pids}",
                f"kill -CONT {pids}  # if nobody stopped it on purpose",
            ]
        return blame(case, Verdict.RANK_STOPPED, stopped, steps)


def frozen_by(rank: ClassifiedRank) -> str:
    """The frozen cgroup that holds the rank, quoted for a shell; "" where it is stopped in another way."""
    state = rank.capture.process.state if rank.capture else None
    return shlex.quote(state.frozen_by) if state and state.frozen_by else ""


def create(options: NoOptions) -> Detector:
    """Build the detector `rank_stopped`: a rank is stopped by a signal, or held by a debugger, while the others wait for it."""
    return RankStopped()
