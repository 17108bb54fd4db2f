"""Tells when memory is running out, while there is still enough of it to write a checkpoint.

    guard = MemoryGuard(host_left=0.05, gpu_left="2GiB")
    for batch in loader:
        ...
        reason = guard.check()

The answer is this rank's own: whether all ranks stop is theirs to agree on.
"""

from __future__ import annotations

import re
import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.cgroups import limits, meminfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from mldebug_training.helpers.cgroups import CgroupLimit

EVERY = 1.0  # seconds
LIMITS_EVERY = 60.0  # seconds: which limits there are
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?)?B?", re.IGNORECASE)


class MemoryGuard:
    """Checks how much memory is left of the host and of the current GPU. Limits: a share below 1, bytes, or "2GiB"; None: no limit.

    The host's memory is /proc/meminfo's MemAvailable, or a limit of this process's control groups, whichever is nearer its
    end. The GPU's is what the driver has free and what PyTorch's cache holds unused: nothing is emptied or waited for.
    Raises ValueError for what is no size. `root` is the host's, for tests; `clock` gives seconds.
    """

    def __init__(
        self,
        host_left: float | str | None = 0.05,
        gpu_left: float | str | None = None,
        every: float = EVERY,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._gpu = _amount(host_left), _amount(gpu_left)
        self._every, self._root, self._clock = every, root, clock
        self._next = self._next_limits = float("-inf")
        self._limits: list[CgroupLimit] = []
        self._reason: str | None = None

    def check(self) -> str | None:
        """Why it is time to stop, as a sentence; None while there is enough memory. Reads at most every `every` seconds,
        and repeats the last answer between; never raises.
        """
        now = self._clock()
        if now >= self._next:
            self._next = now + self._every
            reasons = [*_reasons_of(self._look_at_host), *_reasons_of(self._look_at_gpu)]
            self._reason = "; ".join(reasons) or None
        return self._reason

    def _look_at_host(self) -> Iterator[str]:
        """The place nearest its end, where it is too near."""
        if self._host is None:
            return
        near = min(self._places(self._host), default=None)
        if near is not None and near[0] < 1:
            _, name, left, limit = near
            yield f"memory: {_gib(left)} of {_gib(limit)} left ({name}), wanted {self._wanted(self._host)}"

    def _places(self, wanted: float) -> Iterator[tuple[float, str, int, int]]:
        """(what is left as a multiple of what is wanted, name, bytes left, limit) of all that can end."""
        host = meminfo(self._root)
        if host is not None:
            yield host[0] / (self._least(wanted, host[1]) or 1), "host", *host
        for one in self._present_limits():
            limit = one.bytes()
            least = self._least(wanted, limit or 0)
            left = None if limit is None else one.left(limit, least)
            if limit is not None and left is not None:
                yield left / (least or 1), one.name, left, limit

    def _present_limits(self) -> list[CgroupLimit]:
        if self._clock() >= self._next_limits:
            self._next_limits = self._clock() + LIMITS_EVERY
            self._limits = limits(self._root)
        return self._limits

    def _look_at_gpu(self) -> Iterator[str]:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if self._gpu is None or cuda is None or not cuda.is_initialized():
            return
        free, all_ = cuda.mem_get_info()
        cached = cuda.memory_reserved() - cuda.memory_allocated()
        if free + cached < self._least(self._gpu, all_):
            device = f"GPU {cuda.current_device()}"
            of_it = f", {_gib(cached)} of it in PyTorch's cache" if cached > 0 else ""
            yield f"memory: {_gib(free + cached)} of {_gib(all_)} left ({device}{of_it}), wanted {self._wanted(self._gpu)}"

    @staticmethod
    def _least(amount: float, limit: int) -> float:
        return amount * limit if amount < 1 else amount

    @staticmethod
    def _wanted(amount: float) -> str:
        return f"{amount:.0%}" if amount < 1 else _gib(amount)


def _reasons_of(look: Callable[[], Iterator[str]]) -> list[str]:
    try:
        return list(look())
    except Exception as error:
        pass_on(error)
        return []


def _amount(value: float | str | None) -> float | None:
    """Bytes, or a share below 1."""
    found: Any = value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f'{value!r} is no size: write "2GiB", bytes, or a share as 0.05')
        found = float(match[1]) * 1024 ** (" KMGT".index((match[2] or " ").upper()))
    if found is None:
        return None
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not found >= 0:
        raise ValueError(f'{value!r} is no size: write "2GiB", bytes, or a share as 0.05')
    return float(found)


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
