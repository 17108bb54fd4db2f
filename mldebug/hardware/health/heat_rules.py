"""The rules of heat, power and clocks of one GPU."""

from collections.abc import Iterator

from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.health.model import (
    FINE,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    unread,
)
from mldebug.hardware.health.rule_input import RuleInput
from mldebug.hardware.health.thresholds import Thresholds

HOT_EVENTS = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
)
"""Reasons that cut the clocks against the operator's will; power caps and idling are none of it."""


def temperature(look: RuleInput) -> Iterator[RuleFinding]:
    """Judge the temperature of GPU and memory by the margin to the limit where the GPU gives it, else by the limit.

    Two readings in a row must agree.
    """
    now = look.now
    slowdown = now.temperature_limits_celsius.get("slowdown")
    heat = look.both(lambda one: one.temperature_celsius)
    yield _by_last_two_margins(now, look.limits) or _heat(heat, slowdown, "GPU")
    if "memory_max" in now.temperature_limits_celsius or now.memory_temperature_celsius is not None:
        limit = now.temperature_limits_celsius.get("memory_max")
        yield _heat(look.both(lambda one: one.memory_temperature_celsius), limit, "memory")


def _by_last_two_margins(now: GpuReading, limits: Thresholds) -> RuleFinding | None:
    """By the better of the last two answers; None where there is none, or one alone that is bad.

    The answers, and not those of two readings: what is remembered between its turns would confirm itself.
    """
    margins = (now.temperature_margin_celsius, now.temperature_margin_before_celsius)
    answers = [margin for margin in margins if margin is not None]
    found = _margin(max(answers), limits) if answers else None
    return found if found is FINE or len(answers) > 1 else None


def _margin(margin: float, limits: Thresholds) -> RuleFinding:
    words = f"{_away(margin)} the point where the clocks are cut"
    worst, poor = limits.temperature_margin_unhealthy, limits.temperature_margin_degraded
    if worst is not None and margin <= worst:
        return bad(HealthState.UNHEALTHY, "too_hot", words, SuggestedAction.CHECK_COOLING)
    if poor is not None and margin <= poor:
        return bad(HealthState.DEGRADED, "hot", words, SuggestedAction.CHECK_COOLING)
    return FINE


def _away(margin: float) -> str:
    degrees = round(margin)
    if degrees == 0:
        return "at"
    return f"{-degrees} °C beyond" if degrees < 0 else f"{degrees} °C to"


def _heat(value: float | None, limit: float | None, what: str) -> RuleFinding:
    if value is None or limit is None:
        return unread(f"{what} temperature and its limit")
    if value < limit:
        return FINE
    words = f"{what} temperature {value:.0f} °C, its limit is {limit:.0f} °C"
    return bad(
        HealthState.UNHEALTHY, f"{what.lower()}_too_hot", words, SuggestedAction.CHECK_COOLING
    )


def power(look: RuleInput) -> Iterator[RuleFinding]:
    """Judges a power limit below the default, and the power brake."""
    now, least = look.now, look.limits.power_limit_ratio
    limit, usual = now.power_limit_watts, now.power_limit_default_watts
    if limit is None or not usual:
        yield unread("power limit")
    elif least is not None and limit < least * usual:
        reason = f"the power limit is {limit:.0f} W, by default {usual:.0f} W"
        yield bad(HealthState.DEGRADED, "power_limit_low", reason, SuggestedAction.CHECK_SETTINGS)
    else:
        yield FINE
    events = now.clock_events
    if events is None:
        yield unread("power brake")
    elif "hw_power_brake_slowdown" in events:
        reason = "the power supply asks the GPU to slow down (power brake)"
        yield bad(HealthState.DEGRADED, "power_brake", reason, SuggestedAction.CHECK_HARDWARE)
    else:
        yield FINE


def clocks(look: RuleInput) -> Iterator[RuleFinding]:
    """Judge lowered clocks: by the share of time that counters give, else by reasons (heat, power) active in two readings in a row."""
    shares = dict(_throttled(look))
    if shares:
        yield _worst_clock(shares, look.limits)
    elif look.now.clock_events is not None and look.before is not None:
        before = look.before.clock_events or ()
        lasting = [name for name in HOT_EVENTS if name in look.now.clock_events and name in before]
        words = f"clocks are cut by {', '.join(lasting)}"
        yield (
            bad(HealthState.DEGRADED, lasting[0], words, SuggestedAction.CHECK_COOLING)
            if lasting
            else FINE
        )
    else:
        yield unread("clock events over time")


def _throttled(look: RuleInput) -> Iterator[tuple[str, float]]:
    if look.before is None or look.seconds <= 0:
        return
    for name in HOT_EVENTS:
        old, new = (one.clock_event_seconds.get(name) for one in (look.before, look.now))
        if old is not None and new is not None and new >= old:
            yield name, min(1.0, (new - old) / look.seconds)


def _worst_clock(shares: dict[str, float], limits: Thresholds) -> RuleFinding:
    name, share = max(shares.items(), key=lambda item: item[1])
    words = f"clocks are cut {share:.0%} of the time by {name}".replace("%", " %")
    action = SuggestedAction.CHECK_HARDWARE if "power" in name else SuggestedAction.CHECK_COOLING
    if limits.throttled_ratio_unhealthy is not None and share > limits.throttled_ratio_unhealthy:
        return bad(HealthState.UNHEALTHY, name, words, action)
    if limits.throttled_ratio_degraded is not None and share > limits.throttled_ratio_degraded:
        return bad(HealthState.DEGRADED, name, words, action)
    return FINE
