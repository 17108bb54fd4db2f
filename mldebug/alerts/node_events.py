"""Alerts about storage, host memory and checkpoints. Pure.

An alert about something that cannot be looked at any more goes on until it can be looked at again.
"""

from collections.abc import Iterable, Iterator

import msgspec

from mldebug.alerts.model import Alert, Severity
from mldebug.core.redact import safe_line
from mldebug.hardware.host_memory.state import LevelState, NodeMemory, level_sentence
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems.state import CollectorState

STORAGE, MEMORY, CHECKPOINTS = "storage/", "memory/", "saves/"
GRAVE = ("stuck", "read_only")


class SubjectAlerts(msgspec.Struct, frozen=True, kw_only=True):
    """The alerts about one subject (such as storage) at one moment, and which earlier ones are over.

    An event is over when its key begins with one of `watched` and no alert has that key; not if the
    key begins with one of `unsure`, which could not be looked at.
    """

    alerts: tuple[Alert, ...] = ()
    watched: tuple[str, ...] = ()  # beginnings of keys: what is not among the alarms is over …
    unsure: tuple[str, ...] = ()  # … but for these, which nobody could see

    def is_over(self, key: str) -> bool:
        """Whether an event is over.

        Ask only for the key of an event that is not among the alerts.
        """
        return key.startswith(self.watched) and not key.startswith(self.unsure)


def together(words: Iterable[SubjectAlerts]) -> SubjectAlerts:
    """Merge the alerts of several subjects."""
    parts = tuple(words)
    return SubjectAlerts(
        alerts=tuple(alert for word in parts for alert in word.alerts),
        watched=tuple(one for word in parts for one in word.watched),
        unsure=tuple(one for word in parts for one in word.unsure),
    )


def of_storage(parts: Iterable[CollectorState]) -> Iterator[SubjectAlerts]:
    """The alerts of each storage collector (filesystems, quotas, writers); what it could not read is `unsure`."""
    for part in parts:
        begin = f"{STORAGE}{part.name}/"
        alerts = tuple(
            Alert(
                key=f"{begin}{_name(one.subject)}#{one.kind}",
                kind=f"storage_{one.kind}",
                severity=Severity.CRITICAL if one.kind in GRAVE else Severity.WARNING,
                sentence=one.sentence,
                labels={"subject": one.subject},
                uid=_only(one.uids),
            )
            for one in part.alarms
        )
        silent = [gap.what.partition(" ")[2] or gap.what for gap in part.gaps]
        silent += [one.subject for one in part.alarms if one.kind == "stuck"]
        yield SubjectAlerts(
            alerts=alerts,
            watched=(begin,),
            unsure=tuple(f"{begin}{_name(one)}#" for one in silent),
        )


def of_memory(memory: NodeMemory | None) -> Iterator[SubjectAlerts]:
    """The alerts about memory of the host and of cgroups.

    Yields nothing where `memory` is None, which means that it was not read.
    """
    if memory is not None:
        alerts = (_memory(level, memory) for level in memory.levels if level.alarm)
        yield SubjectAlerts(alerts=tuple(alerts), watched=(MEMORY,))


def of_checkpoints(run: str, uid: int, states: Iterable[SeriesState]) -> Iterator[SubjectAlerts]:
    """Alerts about checkpoints of a run: one for each series (say `model-#.pt`) whose newest checkpoint is incomplete.

    `run`: its name; "" for folders named in the configuration. `uid`: the user whose run it is. A
    series that could not be read is `unsure`.
    """
    begin = f"{CHECKPOINTS}{_name(run)}/"
    for state in states:
        key = f"{begin}{_name(state.folder)}/{_name(state.series)}#"
        if state.trouble:
            yield SubjectAlerts(unsure=(key,))
        elif state.newest is not None and state.newest.state is Completeness.INCOMPLETE:
            labels = {"run": run, "folder": state.folder, "series": state.series}
            alert = Alert(
                key=f"{key}incomplete", kind="save_incomplete", severity=Severity.WARNING, uid=uid,
                sentence=f"checkpoint in {state.folder}: {state.sentence}", labels=labels,
            )  # fmt: skip
            yield SubjectAlerts(alerts=(alert,))
        else:
            yield SubjectAlerts(watched=(key,))


def _only(uids: tuple[int, ...]) -> int:
    """Whose event it is: everyone's (-1), one user's, or, where several share it, for root alone."""
    return (*uids, -1)[0] if len(uids) < 2 else 0


def _name(text: str) -> str:
    """As it stands in a key: one line of text, whatever a file is called."""
    return safe_line(text, 150)


def _memory(one: LevelState, memory: NodeMemory) -> Alert:
    level = one.level
    return Alert(
        key=f"{MEMORY}{level.scope}/{_name(level.name)}",
        kind="memory_full",
        severity=Severity.CRITICAL,
        sentence=level_sentence(one, memory.ranks),
        labels={"scope": level.scope, **({"cgroup": level.name} if level.name else {})},
    )
