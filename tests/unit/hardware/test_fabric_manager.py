"""The log of the Fabric Manager: where it is, what its lines mean, and that what it tells besides the kernel counts once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.hardware.health.kernel_rules import KERNEL_RULES
from mldebug.hardware.health.model import BAD
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.fabric_manager import (
    CONFIGS,
    FabricLine,
    fabric_event,
    log_path,
    parse_fabric_line,
    zone_shift,
)
from mldebug.hardware.kernel_log.model import KernelEvent, Origin
from mldebug.hardware.kernel_log.model import KernelEventKind as K
from mldebug_agents.hardware.fabric_manager import EVERY, MAX_PIECE, FabricManagerLog
from mldebug_agents.hardware.kernel_log import KernelLogSource, KernelNews
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.hardware.kernellines import OF_FABRIC_MANAGER, fold

HEAD = "[Jul 09 2024 18:14:07] [ERROR] [tid 12727] "
STAMP = 1_720_548_847.0  # 2024-07-09 18:14:07 UTC
NONFATAL = "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"
FATAL = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
FEW = "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"
OTHER = "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120. Please update with matching NVIDIA driver package."
TEAM = "failed to find the GPU handle 5410063385821516767 in the multicast team request setup 6130285411925746235."
READY = "Successfully configured all the available NVSwitches to route GPU NVLink traffic. NVLink Peer-to-Peer support will be enabled once the GPUs are successfully registered with the NVLink fabric."


def event_of(words: str) -> KernelEvent | None:
    line = parse_fabric_line(HEAD + words)
    return fabric_event(line, line.stamp) if line else None


# --- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind", "more"),
    [
        (NONFATAL, K.SXID, {"xid": 12028, "severity": "nonfatal", "device": "0000:86:00.0", "link": 61}),
        (FATAL, K.SXID, {"xid": 20034, "severity": "fatal", "device": "0000:86:00.0", "link": 33}),
        (FATAL.replace("fid 0", "NodeId 0"), K.SXID, {"xid": 20034, "severity": "fatal"}),
        (FATAL.replace(" physical id 3 port 33", ""), K.SXID, {"link": None, "device": "0000:86:00.0"}),
        (FEW, K.FABRIC_INCOMPLETE, {}),
        (OTHER, K.FABRIC_MISMATCH, {}),
        (OTHER.replace("don't", "doesn't"), K.FABRIC_MISMATCH, {}),
        (TEAM, K.FABRIC_MULTICAST, {}),
        ("Fabric Manager detected GPU NVL Fatal error on :", K.FABRIC_LINK_ERROR, {}),
        (READY, K.FABRIC_OK, {}),
        ("Successfully configured all the available GPUs and NVSwitches to route NVLink traffic.", K.FABRIC_OK, {}),
    ],
)  # fmt: skip
def test_what_a_line_tells(words: str, kind: K, more: dict[str, object]) -> None:
    event = event_of(words)

    assert event is not None
    assert (event.kind, event.at, event.origin, event.text) == (kind, STAMP, Origin.FABRIC_MANAGER, words)  # fmt: skip
    assert {name: getattr(event, name) for name in more} == more


@pytest.mark.parametrize(
    "words",
    [
        "Fabric Manager detected GPU NVL Non Fatal error on :",
        "Fabric Manager detected stale GPU NVL Fatal error on :",
        "Received an inband message:  Message header details: magic Id:adbc request Id:73a12417a65c5380 status:0 type:2 length:56",
        "fabric manager received port down event on switch with GUID 0xb0cf0e0300e0ae40, port GUID 0xb0cf0e0300e0ae48, and port num 36",
        "Connected to 1 node.",
        "Getting fabric node information",
        f"a request said: {FATAL}",
        FATAL.replace("20034", "2003412345"),
        "detected NVSwitch fatal error 20034",
        "",
    ],
)
def test_other_lines_tell_nothing(words: str) -> None:
    assert event_of(words) is None


@pytest.mark.parametrize(
    "line",
    [
        "moduleId : 3",
        "[2024-07-09 18:14:07] [ERROR] [tid 1] " + FATAL,
        "[Jul 99 2024 18:14:07] [ERROR] [tid 1] " + FATAL,
        "[Xyz 09 2024 18:14:07] [ERROR] [tid 1] " + FATAL,
        FATAL,
        "[" * 5000,
    ],
)
def test_what_is_no_line_of_it(line: str) -> None:
    assert parse_fabric_line(line) is None


@pytest.mark.parametrize("hours", [-12, -8, -3.5, 0, 1, 5.75, 14])
@pytest.mark.parametrize("late", [0.0, 0.9, 200.0])
def test_the_time_zone_is_seen_by_when_the_file_was_written(hours: float, late: float) -> None:
    assert zone_shift(STAMP + hours * 3600, STAMP + late) == -hours * 3600


def test_a_file_that_was_touched_days_later_has_no_zone() -> None:
    assert zone_shift(STAMP, STAMP + 5 * 86400) == 0.0


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/var/log/fabricmanager.log"),
        ("LOG_LEVEL=4\nLOG_FILE_NAME=/var/log/fm/own.log\nLOG_USE_SYSLOG=0\n", "/var/log/fm/own.log"),
        ("#LOG_FILE_NAME=/elsewhere\n LOG_FILE_NAME = /own.log \r\n", "/own.log"),
        ("LOG_FILE_NAME=/a\nLOG_FILE_NAME=/b\n", "/b"),
        ("LOG_USE_SYSLOG=1\n", None),
        ("LOG_FILE_NAME=\n", None),  # it writes to stderr then
        ("LOG_FILE_NAME=own.log\n", None),
        ("LOG_FILE_NAME=/var/log/../../etc/shadow\n", None),
        ("LOG_FILE_NAME=/" + "x" * 300, None),
        ("LOG_FILE_NAME=/a\x1b[31m\n", None),
    ],
)  # fmt: skip
def test_where_the_settings_say_that_it_is(text: str, path: str | None) -> None:
    assert log_path(text) == path


# --- what it means for the node -------------------------------------------------------------------


def health(*words: str, after: float = 5.0) -> dict[str, str]:
    """The bad components, with why, so many seconds after the last of these lines, which came a second apart."""
    events = [fabric_event(FabricLine(stamp=0.0, words=one), 1000.0 + n) for n, one in enumerate(words)]  # fmt: skip
    bursts = fold([one for one in events if one])
    at = 1000.0 + len(words) - 1 + after
    found = node_health([RankEvent(burst=one) for one in bursts], at, Thresholds(), kernel_readable=True)  # fmt: skip
    return {one.component: f"{one.state.value} {one.reason_code} {one.action.value}" for one in found if one.state in BAD}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "component", "judged"),
    [
        (FATAL, "gpu_xid", "unhealthy xid_20034 reset"),
        (FEW, "gpu_errors", "unhealthy fabric_incomplete check_hardware"),
        (OTHER, "gpu_errors", "unhealthy fabric_mismatch check_settings"),
        (TEAM, "gpu_errors", "degraded fabric_multicast reset_when_idle"),
        ("Fabric Manager detected GPU NVL Fatal error on :", "gpu_errors", "degraded fabric_link_error check_hardware"),
    ],
)  # fmt: skip
def test_the_health_of_the_node(words: str, component: str, judged: str) -> None:
    assert health(words) == {component: judged}


def test_a_harmless_error_of_a_switch_is_nothing() -> None:
    assert health(NONFATAL.replace("12028", "22013")) == {}


@pytest.mark.parametrize("words", [FEW, OTHER, TEAM])
def test_it_ends_when_the_fabric_is_set_up(words: str) -> None:
    assert health(words) != {}
    assert health(words, READY) == {}
    assert health(READY, words) != {}


@pytest.mark.parametrize("words", [FEW, OTHER])
def test_who_gave_up_stands_until_then(words: str) -> None:
    assert health(words, after=3 * 86400.0) != {}
    assert health(TEAM, after=3 * 86400.0) == {}


def test_it_starts_again_and_again_and_that_is_one_event() -> None:
    events = [fabric_event(FabricLine(stamp=0.0, words=FEW), 1000.0 + 10 * n) for n in range(30)]
    (burst,) = fold([one for one in events if one])

    assert (burst.count, burst.root.kind) == (30, K.FABRIC_INCOMPLETE)


def test_each_kind_is_reached_and_has_a_rule() -> None:
    lines = (FEW, OTHER, TEAM, "Fabric Manager detected GPU NVL Fatal error on :", READY)

    assert {event.kind for event in map(event_of, lines) if event} == OF_FABRIC_MANAGER
    assert KERNEL_RULES.keys() >= OF_FABRIC_MANAGER


# --- beside the kernel's log ------------------------------------------------------------------------


class Node:
    """A folder that looks like a node with a Fabric Manager, and an agent's reader of its logs."""

    def __init__(self, root: Path, reader: Reader) -> None:
        self.root = root
        self.now = STAMP + 60.0
        self.kernel, self.log = root / "kmsg", root / "var/log/fabricmanager.log"
        for file in (root / CONFIGS[0], self.log):
            file.parent.mkdir(parents=True, exist_ok=True)
        (root / CONFIGS[0]).write_text("LOG_FILE_NAME=/var/log/fabricmanager.log\nLOG_USE_SYSLOG=0\n")  # fmt: skip
        self.kernel.write_text("")
        self.log.write_text("")
        self.log.chmod(0o644)
        self.fabric = FabricManagerLog(str(root), reader, lambda: STAMP - 86400.0, lambda: self.now, lambda: self.now)  # fmt: skip
        self.source = KernelLogSource(
            str(self.kernel), unix=lambda: self.now, monotonic=lambda: self.now, fabric=self.fabric
        )

    def says(self, *words: str, head: str = HEAD, at: float = STAMP) -> None:
        """The Fabric Manager writes these at unix time `at`, which is also what its file says."""
        with self.log.open("a") as file:
            file.write("".join(f"{head}{one}\n" for one in words))
        os.utime(self.log, (at, at))

    def read(self, later: float = EVERY) -> KernelNews:
        self.now += later
        return self.source.read()

    def kinds(self, later: float = EVERY) -> list[tuple[K, int]]:
        return [(one.root.kind, one.count) for one in self.read(later).bursts]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@pytest.fixture
def node(tmp_path: Path, reader: Reader) -> Node:
    if os.geteuid() != 0:
        pytest.skip("the log has to belong to root")
    return Node(tmp_path, reader)


def test_its_end_is_read_at_first_and_then_what_is_new(node: Node) -> None:
    node.says("Connected to 1 node.", FATAL)
    assert node.kinds() == [(K.SXID, 1)]
    assert node.kinds() == [(K.SXID, 1)]  # and no line twice
    node.says(FEW)
    assert node.kinds(later=1.0) == [(K.SXID, 1)]  # it is not looked at each second
    assert node.kinds() == [(K.SXID, 1), (K.FABRIC_INCOMPLETE, 1)]


def test_a_line_that_is_not_whole_yet_is_waited_for(node: Node) -> None:
    node.says("Connected to 1 node.")
    node.read()
    with node.log.open("a") as file:
        file.write(HEAD + FATAL[:40])
    assert node.kinds() == []
    with node.log.open("a") as file:
        file.write(FATAL[40:] + "\n")
    assert node.kinds() == [(K.SXID, 1)]


@pytest.mark.parametrize("first", ["kernel", "fabric manager"])
@pytest.mark.parametrize("delay", [0.4, 8.0])
def test_an_error_that_both_logs_tell_counts_once(node: Node, first: str, delay: float) -> None:
    """The kernel's clock is that of the boot, 1,000 s before."""
    node.now = STAMP + 20.0
    kernel = "3,1,{micros},-;nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM Fault Up\n"
    line = kernel.format(micros=int((node.now + EVERY - STAMP - delay) * 1e6))
    if first == "kernel":
        node.kernel.write_text(line)
    node.says(FATAL)
    node.source._clock.begin(STAMP + delay, 0.0)
    assert node.kinds() == [(K.SXID, 1)]
    node.kernel.write_text(line)
    assert node.kinds() == [(K.SXID, 1)]


def test_two_errors_of_which_one_is_in_both_logs_are_two(node: Node) -> None:
    node.says(FATAL, FATAL)
    (burst,) = node.read().bursts
    assert (burst.count, burst.xids) == (2, {20034: 2})


def test_what_was_before_the_boot_is_over(node: Node) -> None:
    node.says(FEW, head="[Jul 01 2024 18:14:07] [ERROR] [tid 7] ")
    node.says("Connected to 1 node.")
    assert node.kinds() == []


def test_a_log_that_begins_anew_is_read_from_its_begin(node: Node) -> None:
    node.says(*["Connected to 1 node."] * 50)
    node.read()
    node.log.rename(node.log.with_suffix(".log.1"))
    node.log.write_text("")
    node.says(FEW, *["Connected to 1 node."] * 50)
    assert node.kinds() == [(K.FABRIC_INCOMPLETE, 1)]
    node.log.write_text("")  # copied and cut
    node.says(READY)
    news = node.read()
    assert [one.root.kind for one in news.bursts] == [K.FABRIC_INCOMPLETE, K.FABRIC_OK]


def test_of_a_huge_log_the_end_is_read_in_pieces(node: Node) -> None:
    node.says(FEW, *["Received an inband message"] * 6000, FATAL)
    assert node.log.stat().st_size > MAX_PIECE
    assert node.kinds() == [(K.SXID, 1)]
    node.says(*["Received an inband message"] * 6000, FEW)
    assert node.kinds() == [(K.SXID, 1)]
    assert node.kinds() == [(K.SXID, 1), (K.FABRIC_INCOMPLETE, 1)]


def test_another_time_zone(node: Node) -> None:
    node.says(FATAL, at=STAMP + 8 * 3600.0)
    node.now = STAMP + 8 * 3600.0 + 30.0
    (burst,) = node.read().bursts
    assert burst.first_at == STAMP + 8 * 3600.0


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_log_that_others_may_write_is_not_believed(node: Node, mode: int) -> None:
    node.says(FATAL)
    node.log.chmod(mode)
    news = node.read()
    assert news.bursts == ()
    assert news.fabric_gap is not None
    assert "not believed" in news.fabric_gap.reason
    node.log.chmod(0o644)
    news = node.read()
    assert (len(news.bursts), news.fabric_gap) == (1, None)


def test_a_log_of_another_user_is_not_believed(node: Node) -> None:
    node.says(FATAL)
    os.chown(node.log, 12345, 0)
    news = node.read()
    assert (news.bursts, news.fabric_gap is not None) == ((), True)


@pytest.mark.parametrize("other", ["link", "fifo", "folder"])
def test_what_is_no_file_is_not_opened(node: Node, other: str) -> None:
    elsewhere = node.root / "elsewhere"
    elsewhere.write_text(HEAD + FATAL + "\n")
    node.log.unlink()
    if other == "link":
        node.log.symlink_to(elsewhere)
    elif other == "fifo":
        os.mkfifo(node.log)
    else:
        node.log.mkdir()
    news = node.read()
    assert (news.bursts, news.fabric_gap is not None) == ((), True)


def test_without_a_fabric_manager_nothing_is_looked_for(node: Node) -> None:
    node.says(FATAL)
    (node.root / CONFIGS[0]).unlink()
    news = node.read()
    assert (news.bursts, news.fabric_gap) == ((), None)


def test_one_that_has_not_begun_its_log_is_no_gap(node: Node) -> None:
    node.log.unlink()
    news = node.read()
    assert (news.bursts, news.fabric_gap) == ((), None)


def test_the_driver_container_of_the_gpu_operator(node: Node) -> None:
    inside = node.root / "run/nvidia/driver"
    for file in (node.root / CONFIGS[0], node.log):
        there = inside / file.relative_to(node.root)
        there.parent.mkdir(parents=True)
        file.rename(there)
    node.log = inside / "var/log/fabricmanager.log"
    node.says(FATAL)
    assert node.kinds() == [(K.SXID, 1)]
