"""How late the newest records of a file came to it, by the time that stands in them.

Writers of charts hold records back: wandb writes its offline file every 15 s, TensorBoard's writer every ten charts or 120 s. What a job
wrote before it hung comes to the file when it hangs already, from a thread that lives on. Such a record is no sign of life of now.
"""

import math
from collections import deque

KEPT = 8  # reads of one file that are compared
MOST = 130.0  # seconds; who is later has another clock, or copies old records


class FlushDelay:
    """Compares the times in the records of one file with those of its promptest reads, so that a clock which differs from ours
    makes no difference, and starts anew where that clock was set back.
    """

    def __init__(self) -> None:
        self._ages: deque[float] = deque(maxlen=KEPT)
        self._newest = -math.inf

    def take(self, written_at: float | None, now: float) -> float:
        """Seconds by which the newest record of one read is late; 0.0 where it tells no time. `written_at`: its own time (unix
        seconds); `now`: monotonic seconds.
        """
        if written_at is None:
            return 0.0
        if written_at < self._newest:
            self._ages.clear()  # its clock was set back
        self._newest = written_at
        self._ages.append(now - written_at)
        late = self._ages[-1] - min(self._ages)
        return late if late <= MOST else 0.0
