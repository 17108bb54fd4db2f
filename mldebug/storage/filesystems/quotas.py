"""Reads the output of a site's quota tool by the site's own pattern.

Pure; every failure is a `QuotaError`.
"""

import re
from typing import NamedTuple

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGTP]?)(?:i?[bB])?\*?")
_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NO_LIMIT = frozenset(("none", "unlimited", "infinity", "inf", "∞", "-", "--"))  # GPFS, BeeGFS, XFS
MOST = 1000  # matches that are read


class QuotaError(ValueError):
    """The quota could not be read; the text says why."""


class QuotaUsage(NamedTuple):
    """The fullest of the quotas that a tool printed.

    `share` of the limit: above 1 within a grace period. `used`, `limit`: bytes, or None.
    """

    share: float
    used: float | None = None
    limit: float | None = None


def read_quota(pattern: str, text: str) -> QuotaUsage:
    """The fullest quota in a tool's output, by the named groups of the pattern.

    Raises QuotaError for an empty output, no match, or no number.
    """
    if not text.strip():
        raise QuotaError("the tool printed nothing")
    try:
        found = re.compile(pattern, re.MULTILINE).finditer(text)
    except re.error as error:
        raise QuotaError(f"the pattern is none: {error}") from None
    quotas = [_quota(match.groupdict()) for match, _ in zip(found, range(MOST), strict=False)]
    limited = [quota for quota in quotas if quota is not None]
    if not quotas:
        raise QuotaError("nothing that the tool printed matches the pattern")
    if not limited:
        raise QuotaError("the tool tells no limit")
    return max(limited)


def _quota(groups: dict[str, str | None]) -> QuotaUsage | None:
    """The quota of one match; None without a limit, which tools print as 0 or as a word."""
    if groups.get("percent"):
        return QuotaUsage(_number(groups["percent"]) / 100)
    if groups.get("ratio"):
        return QuotaUsage(_number(groups["ratio"]))
    if not {"used", "limit"} <= set(groups):
        raise QuotaError(
            "the pattern needs a group named percent or ratio, or two named used and limit"
        )
    used = amount(groups["used"])
    limit = 0.0 if (groups["limit"] or "").strip().lower() in _NO_LIMIT else amount(groups["limit"])
    return QuotaUsage(used / limit, used, limit) if limit else None


def amount(text: str | None) -> float:
    """The bytes that a text such as `1.5T`, `1024` or `20GiB` means (units are powers of 1024).

    A `*`, by which `quota` marks a passed limit, is ignored. Raises QuotaError for any other text.
    """
    match = _AMOUNT.fullmatch((text or "").strip())
    if match is None:
        raise QuotaError(f"{(text or '')[:40]!r} is no amount")
    return float(match[1]) * float(1024 ** _POWER[match[2]])


def _number(text: str | None) -> float:
    try:
        value = float((text or "").strip())
    except ValueError:
        raise QuotaError(f"{(text or '')[:40]!r} is no number") from None
    if not 0 <= value < 1e6:
        raise QuotaError(f"{value:g} cannot be")
    return value
