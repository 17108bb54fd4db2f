"""Signs of progress that other nodes have seen, as if they had been seen here. Belongs to the main loop's thread."""

from collections.abc import Iterable

import msgspec

from mldebug.cluster.messages import Signal
from mldebug.stall.signals import STEPS, Progress, ProgressKind
from mldebug_agents.watch.job_watch import JobLook

_KINDS = {str(kind): kind for kind in STEPS}


class FarProgress:
    """Of one run: what was seen here, and what others have told; ours goes before theirs."""

    def __init__(self) -> None:
        self._own: tuple[Progress, ...] = ()
        self._far: dict[ProgressKind, Progress] = {}

    def own(self, now: float) -> tuple[Signal, ...]:
        """What there is to tell others."""
        return tuple(
            Signal(kind=str(one.kind), value=one.value, age=max(0.0, now - one.at))
            for one in self._own
            if one.kind in STEPS
        )

    def all(self, now: float) -> tuple[Signal, ...]:
        """Ours, and what others have told us."""
        here = self.own(now)
        kinds = {one.kind for one in here}
        far = (
            Signal(
                kind=str(one.kind),
                value=one.value,
                age=max(0.0, now - one.at),
                told=max(0.0, now - (now if one.until is None else one.until)),
            )
            for one in self._far.values()
        )
        return (*here, *(one for one in far if one.kind not in kinds))

    def take(self, told: Iterable[Signal], now: float) -> None:
        """What others have just told; a value that has not changed keeps its time."""
        kinds = set()
        for one in told:
            if (kind := _KINDS.get(one.kind)) is None:
                continue
            kinds.add(kind)
            known = self._far.get(kind)
            until = now - min(max(0.0, one.told), 1e9)
            if known is not None and known.value == one.value:
                until = max(until, known.until or until)
                self._far[kind] = msgspec.structs.replace(known, until=until)
            else:
                steps = one.value - known.value if known else 0.0
                events = int(min(max(1.0, steps), 1e6))
                at = now - min(max(0.0, one.age), 1e9)
                self._far[kind] = Progress(
                    kind=kind, value=one.value, at=at, events=events, until=max(at, until)
                )
        self._far = {kind: one for kind, one in self._far.items() if kind in kinds}

    def forget(self) -> None:
        """Nobody tells any more."""
        self._far = {}

    def complete(self, one: JobLook) -> JobLook:
        """The look with what others have seen, where nothing of that kind is seen here."""
        self._own = one.look.progress
        here = {each.kind for each in self._own}
        more = tuple(each for kind, each in self._far.items() if kind not in here)
        if not more:
            return one
        look = msgspec.structs.replace(one.look, progress=(*self._own, *more))
        return msgspec.structs.replace(one, look=look)
