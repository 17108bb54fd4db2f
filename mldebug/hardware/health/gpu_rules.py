"""The health rules of one GPU: for each component a function that takes two readings, the time between them, and the limits.

A rule yields what it found, `FINE` where a value was read and is fine, and `unread` where it is
None: a value that is not given is never a sign of health. A rate needs two readings.
"""

from collections.abc import Iterable, Iterator

from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.health.heat_rules import clocks, power, temperature
from mldebug.hardware.health.link_rules import nvlink, pcie
from mldebug.hardware.health.memory_rules import ecc, remapped, retired
from mldebug.hardware.health.model import (
    FINE,
    ComponentHealth,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    combine,
    unread,
)
from mldebug.hardware.health.rule_input import Rule, RuleInput
from mldebug.hardware.health.thresholds import Thresholds

_REQUESTED = {
    "reset": (HealthState.UNHEALTHY, SuggestedAction.RESET),
    "bus_reset": (HealthState.UNHEALTHY, SuggestedAction.RESET),
    "drain_and_reset": (HealthState.UNHEALTHY, SuggestedAction.RESET),
    "drain_p2p": (HealthState.DEGRADED, SuggestedAction.RESET_WHEN_IDLE),
    "recover_imex": (HealthState.DEGRADED, SuggestedAction.CHECK_SETTINGS),
    "reboot": (HealthState.UNHEALTHY, SuggestedAction.REBOOT),
    "system_reboot": (HealthState.UNHEALTHY, SuggestedAction.REBOOT),
}


def _recovery(look: RuleInput) -> Iterator[RuleFinding]:
    action_name = look.now.recovery_action
    if action_name == "none":
        yield FINE
    elif action_name in _REQUESTED:
        state, action = _REQUESTED[action_name]
        reason = f"the driver asks for: {action_name.replace('_', ' ')}"
        yield bad(state, f"recovery_{action_name}", reason, action)
    else:
        yield unread("recovery action")


def _driver(look: RuleInput) -> Iterator[RuleFinding]:
    mode = look.now.persistence_mode
    if mode is None:
        yield unread("persistence mode")
    elif mode:
        yield FINE
    else:
        reason = "persistence mode is off: the driver is loaded anew for each job"
        yield bad(HealthState.DEGRADED, "persistence_off", reason, SuggestedAction.CHECK_SETTINGS)


RULES: dict[str, Rule] = {
    "gpu_ecc": ecc,
    "gpu_remapped_rows": remapped,
    "gpu_retired_pages": retired,
    "gpu_temperature": temperature,
    "gpu_power": power,
    "gpu_clocks": clocks,
    "gpu_pcie": pcie,
    "gpu_nvlink": nvlink,
    "gpu_recovery": _recovery,
    "gpu_driver": _driver,
}


def gpu_health(
    now: GpuReading,
    before: GpuReading | None,
    seconds: float,
    limits: Thresholds,
    links_once_up: Iterable[int] = (),
) -> tuple[ComponentHealth, ...]:
    """The health of every component of one GPU.

    `before`: its full reading before, `seconds` earlier; None: there is none.

    `links_once_up`: numbers of NVLinks that were up in any earlier reading.
    """
    look = RuleInput(now, before, seconds, limits, frozenset(links_once_up))
    return tuple(
        combine(component, rule(look), now.uuid, now.index) for component, rule in RULES.items()
    )
