"""Children that were let go or told to end, until they are gone: what they hold, and that nobody follows them into a driver."""

import time

from mldebug_agents.hardware.gpu.child import stuck
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Worker

DIES_WITHIN = 0.5  # seconds in which one that was killed outside the kernel is gone


class Parting:
    """Remembers each of them until it has ended. Whoever calls takes turns."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._let_go: list[Worker] = []  # ends by itself when it comes back
        self._ended: list[
            Worker
        ] = []  # the helper was told to kill it, and spares it inside a GPU driver

    def let_go(self, worker: Worker) -> None:
        """Hang up: an idle one closes its handles and ends, a stuck one when it comes back."""
        worker.hang_up()
        self._let_go.append(worker)

    def end(self, worker: Worker) -> None:
        """Have it killed, and wait a moment for its death. It may have gone into the driver since it was looked at."""
        worker.end()
        self._ended.append(worker)
        deadline = time.monotonic() + DIES_WITHIN
        while not worker.gone() and time.monotonic() < deadline:
            time.sleep(0.005)

    def refuse_another(self) -> None:
        """Raise GpuBlockedError while one sits in the kernel, or has not ended although it should."""
        self.bury()
        for one in self.astray():
            raise stuck.still_there(one)

    def astray(self) -> tuple[Worker, ...]:
        """Those that do not come back."""
        left = [one for one in self._let_go if not one.gone()]
        sitting = [one for one in left if stuck.sits(self._host, one)]
        return (*(one for one in self._ended if not one.gone()), *sitting)

    def bury(self) -> bool:
        """Forget those that are gone. True where none is left."""
        for some in (self._let_go, self._ended):
            for one in [one for one in some if one.gone()]:
                one.kill()  # it has ended: this closes its pipe
                some.remove(one)
        for one in self._ended:  # it was spared, and may have come out of the driver since
            if not stuck.sits(self._host, one):
                one.end()
        return not (self._let_go or self._ended)
