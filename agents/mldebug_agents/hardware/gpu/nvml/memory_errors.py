"""Memory errors: ECC counts by place, rows that were replaced, pages that were retired."""

from typing import Any

from mldebug.hardware.gpu.readings import EccCount, ErrorType, RemappedRows, Scope
from mldebug_agents.hardware.gpu.nvml import bounds
from mldebug_agents.hardware.gpu.nvml.calls import Ask

_TYPES: tuple[tuple[ErrorType, int], ...] = (("corrected", 0), ("uncorrected", 1))
_SCOPES: tuple[tuple[Scope, int], ...] = (("volatile", 0), ("aggregate", 1))
_PLACES = {
    "l1": 0,
    "l2": 1,
    "dram": 2,
    "register": 3,
    "texture": 4,
    "shared": 5,
    "cbu": 6,
    "sram": 7,
}
_CAUSES = {"corrected": 0, "uncorrected": 1}


def memory_errors(ask: Ask) -> dict[str, Any]:
    """The part of a `GpuReading` about memory errors: ECC counts, replaced rows, retired pages."""
    modes = ask.seldom("ecc_mode", "nvmlDeviceGetEccMode")
    pages = {
        cause: ask(f"retired_pages {cause}", "nvmlDeviceGetRetiredPages", number, to=len)
        for cause, number in _CAUSES.items()
    }
    return {
        "ecc_mode": ask.convert("ecc_mode", modes[0], bounds.switch) if modes else None,
        "ecc": _ecc(ask),
        "remapped_rows": _rows(ask),
        "retired_pages": {cause: found for cause, found in pages.items() if found is not None},
        "retired_pages_pending": ask(
            "retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", to=bounds.switch
        ),
    }


def _ecc(ask: Ask) -> tuple[EccCount, ...]:
    found = []
    for kind, type_ in _TYPES:
        for scope, number in _SCOPES:
            counts = {
                place: ask(
                    f"ecc {kind} {place} {scope}",
                    "nvmlDeviceGetMemoryErrorCounter",
                    *(type_, number, at),
                    to=bounds.count,
                )
                for place, at in _PLACES.items()
            }
            counts["total"] = ask(
                f"ecc {kind} {scope}", "nvmlDeviceGetTotalEccErrors", type_, number, to=bounds.count
            )
            found += [
                EccCount(type=kind, location=place, scope=scope, count=count)
                for place, count in counts.items()
                if count is not None
            ]
    return tuple(found)


def _rows(ask: Ask) -> RemappedRows | None:
    rows = ask("remapped_rows", "nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    corrected, uncorrected, pending, failed = rows
    banks = ask("remap_banks", "nvmlDeviceGetRowRemapperHistogram")
    names = ("max", "high", "partial", "low", "none")
    counts = {
        name: ask.convert("remap_banks", getattr(banks, name, None), bounds.count) for name in names
    }
    return RemappedRows(
        corrected=ask.convert("remapped_rows", corrected, bounds.count),
        uncorrected=ask.convert("remapped_rows", uncorrected, bounds.count),
        pending=ask.convert("remapped_rows", pending, bounds.switch),
        failed=ask.convert("remapped_rows", failed, bounds.switch),
        banks={name: count for name, count in counts.items() if count is not None},
    )
