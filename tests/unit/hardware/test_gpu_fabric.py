"""The NVLink fabric of a GPU by the real binding: joined, on the way, failed, in trouble; and boards that have none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakenvml.library import FakeNvml
from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.hardware.health.thresholds import Thresholds
from mldebug_agents.hardware.gpu.nvml.library import Library
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

CALL = "nvmlDeviceGetGpuFabricInfoV 0"
STATES = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}


class Card:
    """The first GPU of a recording, with a fabric of its own."""

    def __init__(self, fake: FakeNvml) -> None:
        self.fake = fake
        self._reader = Nvidia(Library(fake.library))
        self.before: GpuReading | None = None

    def read(self, state: str, status: int = 0, health: int = 0) -> GpuReading:
        """As a first read: the fabric is asked again."""
        self.fake.set(CALL, STATES[state], status, health)
        self.close()
        self._reader = Nvidia(Library(self.fake.library))
        return self._reader.full().gpus[0]

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    fake = FakeNvml(tmp_path, "idle")
    fake.set("nvmlDeviceGetComputeRunningProcesses_v3 0")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    one = Card(fake)
    yield one
    one.close()


def judged(now: GpuReading, before: GpuReading | None = None) -> ComponentHealth:
    (found,) = [one for one in gpu_health(now, before, 30.0, Thresholds()) if one.component == "gpu_nvlink"]  # fmt: skip
    return found


def test_a_gpu_that_has_joined_is_well(card: Card) -> None:
    now = card.read("completed", health=0b10101010)
    assert now.fabric is not None
    assert (now.fabric.state, now.fabric.status, now.fabric.troubles) == ("completed", 0, ())
    assert judged(now, now).state is HealthState.HEALTHY


def test_a_board_without_a_fabric_has_none(card: Card) -> None:
    assert card.read("not supported").fabric is None
    card.fake.set(CALL, code=3)
    reader = Nvidia(Library(card.fake.library))
    assert reader.full().gpus[0].fabric is None
    reader.close()


def test_one_that_could_not_join_starts_no_job(card: Card) -> None:
    found = judged(card.read("completed", status=9))
    assert (found.state, found.reason_code) == (HealthState.UNHEALTHY, "fabric_failed")
    assert "NVML error 9" in found.reason


@pytest.mark.parametrize("state", ["not started", "in progress"])
def test_one_that_does_not_join_is_told_at_the_second_read(card: Card, state: str) -> None:
    now = card.read(state)
    assert judged(now).state is HealthState.HEALTHY
    found = judged(now, now)
    assert (found.state, found.reason_code) == (HealthState.DEGRADED, "fabric_not_ready")
    assert "nvidia-fabricmanager" in found.reason


def test_one_on_which_a_program_works_is_no_fault(card: Card) -> None:
    card.fake.set("nvmlDeviceGetComputeRunningProcesses_v3 0", 4711, 1 << 30)
    now = card.read("in progress")
    assert judged(now, now).state is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("mask", "state", "code"),
    [
        (0b01, HealthState.DEGRADED, "fabric_degraded_bandwidth"),
        (0b0110, HealthState.DEGRADED, "fabric_route_recovery"),
        (0b011010, HealthState.UNHEALTHY, "fabric_route_unhealthy"),
        (0b01101010, HealthState.DEGRADED, "fabric_access_timeout_recovery"),
    ],
)
def test_troubles_of_the_fabric(card: Card, mask: int, state: HealthState, code: str) -> None:
    found = judged(card.read("completed", health=mask))
    assert (found.state, found.reason_code) == (state, code)
