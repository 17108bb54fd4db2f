"""Every rank is stopped: somebody paused the job, no rank is to blame."""

from mldebug.core.model import Confidence, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case, ranks_text
from mldebug.diagnosis.classify.evidence import evidence_of
from mldebug.diagnosis.detectors import Detector


class JobPaused:
    """Finds that all ranks are stopped, by a scheduler's suspend, a debugger, a frozen cgroup or a person.

    Names no rank.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where all living ranks (at least two) are in the kernel's state T or t, or in a frozen
        cgroup; None otherwise.
        """
        stopped = case.named("stopped", "traced")
        if len(stopped) < 2 or len(stopped) != len(case.alive):
            return None
        states = [one.capture.process.state for one in stopped if one.capture]
        frozen = all(state is not None and state.frozen_by for state in states)
        how = "frozen by their cgroups" if frozen else "stopped"
        thaw = "docker ps --filter status=paused  # docker unpause thaws them"
        pids = " ".join(str(rank.pid) for rank in stopped[:16])
        return Finding(
            verdict=Verdict.JOB_PAUSED,
            culprits=(),
            confidence=Confidence.HIGH,
            summary=f"all {len(stopped)} ranks seen are {how} ({ranks_text(r.rank for r in stopped)}): the job was paused",
            evidence=evidence_of(case, stopped),
            next_steps=(
                "scontrol show job JOBID | grep JobState  # suspended by the scheduler?",
                thaw if frozen else f"kill -CONT {pids}",
            ),
        )


def create(options: NoOptions) -> Detector:
    """Build the detector `job_paused`: every rank is stopped: somebody paused the job, no rank is to blame."""
    return JobPaused()
