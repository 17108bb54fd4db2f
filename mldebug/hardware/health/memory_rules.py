"""The rules of GPU memory: ECC errors, rows and pages that were replaced."""

from collections.abc import Iterator

from mldebug.hardware.gpu.readings import ErrorType, GpuReading, Scope, ecc_count
from mldebug.hardware.health.model import (
    FINE,
    OFF,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    unread,
)
from mldebug.hardware.health.rule_input import RuleInput


def ecc(look: RuleInput) -> Iterator[RuleFinding]:
    """Judges memory errors that ECC corrected or detected."""
    if look.now.ecc_mode is False:
        yield bad(
            HealthState.DEGRADED, "ecc_off", "ECC is switched off", SuggestedAction.CHECK_SETTINGS
        )
    limits = look.limits
    yield _count(
        look,
        "uncorrected",
        "total",
        "volatile",
        limits.ecc_uncorrected_volatile,
        HealthState.UNHEALTHY,
        SuggestedAction.RESET,
    )
    yield _count(
        look,
        "uncorrected",
        "sram",
        "aggregate",
        limits.ecc_sram_uncorrected_aggregate,
        HealthState.UNHEALTHY,
        SuggestedAction.REPLACE,
    )
    yield _count(
        look,
        "corrected",
        "dram",
        "volatile",
        limits.ecc_dram_corrected_volatile,
        HealthState.DEGRADED,
        SuggestedAction.WATCH,
    )
    yield _count(
        look,
        "corrected",
        "sram",
        "volatile",
        limits.ecc_sram_corrected_volatile,
        HealthState.DEGRADED,
        SuggestedAction.WATCH,
    )


def _count(
    look: RuleInput,
    kind: ErrorType,
    location: str,
    scope: Scope,
    limit: int | None,
    state: HealthState,
    action: SuggestedAction,
) -> RuleFinding:
    if limit is None:
        return OFF
    place = "" if location == "total" else f" {location.upper()}"
    count = look.both(lambda reading: ecc_count(reading, kind, location, scope))
    if count is None:
        return unread(f"{kind}{place} ECC errors")
    if count <= limit:
        return FINE
    span = "since the driver was loaded" if scope == "volatile" else "since the board was made"
    code = f"ecc_{kind}_{location}_{scope}"
    return bad(state, code, f"{count} {kind}{place} ECC errors {span} (limit {limit})", action)


def remapped(look: RuleInput) -> Iterator[RuleFinding]:
    """Judges rows of memory that were replaced by spare ones (Ampere and newer)."""
    rows, limits = look.now.remapped_rows, look.limits
    if rows is None:
        yield unread("remapped rows")
        return
    yield _flag(
        look.both(_failed),
        "row_remap_failed",
        "a bad row of memory could not be replaced",
        HealthState.UNHEALTHY,
        SuggestedAction.REPLACE,
    )
    yield _flag(
        rows.pending,
        "row_remap_pending",
        "a bad row of memory is replaced at the next reset",
        HealthState.DEGRADED,
        SuggestedAction.RESET_WHEN_IDLE,
    )
    replaced = look.both(_uncorrected)
    if replaced is not None and limits.remapped_rows_uncorrected is not None:
        many = replaced >= limits.remapped_rows_uncorrected
        reason = f"{replaced} rows replaced after uncorrectable errors"
        yield (
            bad(HealthState.UNHEALTHY, "row_remaps_uncorrected", reason, SuggestedAction.REPLACE)
            if many
            else FINE
        )
    empty = look.both(_without_spare)
    if empty is not None and limits.remap_banks_without_spare is not None:
        many = empty > limits.remap_banks_without_spare
        reason = f"{empty} banks of memory have no spare row left"
        yield (
            bad(HealthState.DEGRADED, "row_remap_no_spare", reason, SuggestedAction.WATCH)
            if many
            else FINE
        )


def _uncorrected(reading: GpuReading) -> int | None:
    return reading.remapped_rows.uncorrected if reading.remapped_rows else None


def _failed(reading: GpuReading) -> bool | None:
    return reading.remapped_rows.failed if reading.remapped_rows else None


def _without_spare(reading: GpuReading) -> int | None:
    return reading.remapped_rows.banks.get("none") if reading.remapped_rows else None


def _flag(
    value: int | None, code: str, reason: str, state: HealthState, action: SuggestedAction
) -> RuleFinding:
    if value is None:
        return unread(code.replace("_", " "))
    return bad(state, code, reason, action) if value else FINE


def retired(look: RuleInput) -> Iterator[RuleFinding]:
    """Judges pages of memory that are no longer used (GPUs before Ampere; newer ones replace rows instead)."""
    pages, limits = look.now.retired_pages, look.limits
    if look.now.retired_pages_pending is not None:
        reason = "a bad page of memory is taken out at the next reset"
        yield _flag(
            look.now.retired_pages_pending,
            "page_retirement_pending",
            reason,
            HealthState.DEGRADED,
            SuggestedAction.RESET_WHEN_IDLE,
        )
    if not pages:
        yield unread("retired pages")
        return
    total = look.both(lambda one: sum(one.retired_pages.values()) if one.retired_pages else None)
    double = look.both(lambda one: one.retired_pages.get("uncorrected")) or 0
    if limits.retired_pages is not None and (total or 0) >= limits.retired_pages:
        yield bad(
            HealthState.UNHEALTHY,
            "retired_pages",
            f"{total} pages of memory taken out (limit {limits.retired_pages})",
            SuggestedAction.REPLACE,
        )
    elif limits.retired_pages_uncorrected is not None and double > limits.retired_pages_uncorrected:
        reason = f"{double} pages of memory taken out after uncorrectable errors"
        yield bad(
            HealthState.DEGRADED,
            "retired_pages_uncorrected",
            reason,
            SuggestedAction.CHECK_HARDWARE,
        )
    else:
        yield FINE
