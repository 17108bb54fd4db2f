"""One question to NCCL RAS while a capture is taken: nobody waits for it that has something else to do."""

import threading
import time
from collections.abc import Callable

from mldebug.core.model import Gap, Job, NcclRas
from mldebug_agents.capture.nccl_ras.child import RasReply
from mldebug_agents.capture.nccl_ras.client import SLACK, WHAT, gap, is_ours_to_ask

Ask = Callable[[Job, float], RasReply]
ELSEWHERE = Gap(what=WHAT, reason="of a job this large the node of rank 0 asks alone")


class Beside:
    """Asks from now on, in a thread of its own; `ask` None: nobody is asked."""

    def __init__(self, ask: Ask | None, job: Job, seconds: float) -> None:
        self._reply: RasReply | None = None
        self._thread: threading.Thread | None = None
        self._until = time.monotonic() + seconds + SLACK
        self._elsewhere = ask is not None and not is_ours_to_ask(job)
        if ask is not None and not self._elsewhere:
            work = threading.Thread(target=self._ask, args=(ask, job, seconds), daemon=True)
            self._thread = work
            work.start()

    def take(self, left: float, uses_gpus: bool) -> tuple[NcclRas | None, tuple[Gap, ...]]:
        """The answer, waited for as long as is `left`; a job without GPUs owes none."""
        if self._thread is None:
            return None, (ELSEWHERE,) if self._elsewhere and uses_gpus else ()
        self._thread.join(max(0.0, min(left, self._until - time.monotonic())))
        reply = self._reply or RasReply(error="no answer in time")
        missing = gap(reply)
        told = missing is not None and (uses_gpus or not reply.silent)
        return reply.told, (missing,) if missing is not None and told else ()

    def _ask(self, ask: Ask, job: Job, seconds: float) -> None:
        self._reply = ask(job, seconds)
