"""Suspended pools of ZFS: their end by their own file, where the kernel's log has no line for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.hardware.health.model import HealthState
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug_agents.hardware.kernel_log import KernelLogSource
from mldebug_agents.hardware.zfs_pools import SuspendedPools

NOW = 1_000_000.0
SUSPENDED = (
    "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended."
)


class Pools:
    """A node whose log may have a suspended pool, and its folder of pools."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "zfs"
        (self.folder / "tank").mkdir(parents=True)
        self.state = self.folder / "tank/state"
        self._log = root / "kmsg"
        self._log.write_text(f"4,1,1000000,-;{SUSPENDED}\n")
        self.now = NOW
        pools = SuspendedPools(str(self.folder))
        self._source = KernelLogSource(str(self._log), unix=lambda: self.now, monotonic=lambda: self.now - NOW + 2.0, pools=pools)  # fmt: skip

    def say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")

    def storage(self) -> HealthState:
        self.now += 10.0
        events = [RankEvent(burst=one) for one in self._source.read().bursts]
        found = node_health(events, self.now, Thresholds(), kernel_readable=True)
        return next(one.state for one in found if one.component == "storage")


@pytest.fixture
def node(tmp_path: Path) -> Pools:
    return Pools(tmp_path)


def test_a_pool_that_works_again_is_well(node: Pools) -> None:
    node.state.write_text("SUSPENDED\n")
    assert node.storage() is node.storage() is HealthState.UNHEALTHY
    node.state.write_text("ONLINE\n")
    assert node.storage() is node.storage() is HealthState.HEALTHY
    node.say(f"4,2,50000000,-;{SUSPENDED}")
    node.state.write_text("SUSPENDED\n")
    assert node.storage() is HealthState.UNHEALTHY


def test_a_pool_that_was_exported_is_nobodys(node: Pools) -> None:
    node.state.write_text("SUSPENDED\n")
    assert node.storage() is HealthState.UNHEALTHY
    node.state.unlink()
    node.state.parent.rmdir()
    assert node.storage() is HealthState.HEALTHY


def _gone(node: Pools) -> None:
    node.state.parent.rmdir()
    node.folder.rmdir()


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.state.write_text("ONLINE\n"),  # of failmode=continue: it never says so
        lambda node: node.state.write_text(""),
        lambda node: node.state.mkdir(),
        _gone,
    ],
)
def test_a_file_that_never_called_it_suspended_ends_nothing(
    node: Pools, change: Callable[[Pools], object]
) -> None:
    change(node)
    assert node.storage() is node.storage() is HealthState.UNHEALTHY


HISTORY = "txg      birth            state ndirty       nread        nwritten     reads    writes   otime        qtime        wtime        stime\n"


def committed(node: Pools, *newest: int, state: str = "C") -> None:
    """What `txgs` shows: these groups, the last of which is in `state`, and one that is open."""
    groups = [(number, "C") for number in newest[:-1]] + [
        (newest[-1], state),
        (newest[-1] + 1, "O"),
    ]
    rows = [f"{number:<8} 77203930411      {word}     0            0            0            0        0        5001046178   1740" for number, word in groups]  # fmt: skip
    (node.state.parent / "txgs").write_text(HISTORY + "\n".join(rows) + "\n")


def test_with_failmode_continue_it_works_when_it_commits_again(node: Pools) -> None:
    """Its file says ONLINE all the time."""
    node.state.write_text("ONLINE\n")
    committed(node, 2940, 2941, state="S")
    assert node.storage() is node.storage() is HealthState.UNHEALTHY
    committed(node, 2940, 2941)  # it was on its way
    assert node.storage() is HealthState.UNHEALTHY
    committed(node, 2940, 2941, 2942, 2943)
    assert node.storage() is node.storage() is HealthState.HEALTHY
    node.say(f"4,2,60000000,-;{SUSPENDED}")
    assert node.storage() is node.storage() is HealthState.UNHEALTHY
    committed(node, 2943, 2944, 2945)
    assert node.storage() is HealthState.HEALTHY


@pytest.mark.parametrize(
    "text",
    ["", HISTORY, "x y C\n", f"{'9' * 30} 1 C\n", "2941 1 S\n2942 1 O\n", "\0" * 100],
)
def test_a_history_that_tells_nothing_ends_nothing(node: Pools, text: str) -> None:
    node.state.write_text("ONLINE\n")
    (node.state.parent / "txgs").write_text("2941 77 C 0\n")
    assert node.storage() is HealthState.UNHEALTHY
    (node.state.parent / "txgs").write_text(text)
    assert node.storage() is node.storage() is HealthState.UNHEALTHY


def test_the_line_of_new_versions_ends_it_without_the_file(node: Pools) -> None:
    assert node.storage() is HealthState.UNHEALTHY
    node.say("4,2,2000000,-;WARNING: Pool 'tank' was suspended and is being resumed. Failed I/O will be retried.")  # fmt: skip
    assert node.storage() is HealthState.HEALTHY


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "9tank"])
def test_no_other_file_is_opened(tmp_path: Path, name: str) -> None:
    node = Pools(tmp_path)
    opened: list[str] = []
    pools = SuspendedPools(str(tmp_path))
    pools._state = lambda one: opened.append(one) and None  # type: ignore[method-assign,assignment,func-returns-value]
    node.say(f"4,2,2000000,-;{SUSPENDED.replace('tank', name)}")
    bursts = node._source.read().bursts
    assert list(pools.back(bursts, NOW)) == []
    assert opened == ["tank"]
