"""The configured limits of filesystems: how full is too full (a share, or bytes that must be left) for each path, and which share can really be used."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from mldebug.core.units import format_size, parse_size

BYTES, SCRATCH = 0.85, 0.75
USABLE = {"lustre": 0.8}  # "80 % is the new 100 %"; GPFS can be filled
_RATIO = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_LEFT = re.compile(r"(.+?)(?<!\s)\s*+left")
_SCRATCH = re.compile(r"(?:^|/)[^/]*scratch[^/]*(?:/|$)", re.IGNORECASE)


class UsageLimit(NamedTuple):
    """A limit for a filesystem: it is too full above this share of the usable size, or with less than so many bytes left."""

    ratio: float | None = None
    left: int | None = None

    def passed(self, used: float, left: float) -> bool:
        """Whether the limit is passed. `used`: share of what can be used, 0 to 1; `left`: bytes."""
        if self.ratio is not None:
            return used >= self.ratio
        return self.left is not None and left < self.left

    @property
    def words(self) -> str:
        """The limit as the end of a sentence: `set to 85%`, `set to less than 40TiB left`."""
        if self.ratio is not None:
            return f"set to {self.ratio:.0%}"
        return f"set to less than {format_size(self.left or 0)} left"


def parse_limit(text: str) -> UsageLimit:
    """Parse `0.85` or `40TiB left`. Raises ValueError that says in words what is wrong."""
    word = text.strip()
    if left := _LEFT.fullmatch(word):
        return UsageLimit(left=parse_size(left[1]))
    if not _RATIO.fullmatch(word) or not 0 < float(word) <= 1 or not math.isfinite(float(word)):
        raise ValueError(
            f"{word[:40]!r} is neither a share such as 0.85 nor a rest such as 40TiB left"
        )
    return UsageLimit(ratio=float(word))


def nearest_rule(rules: Mapping[str, str], path: str) -> str | None:
    """The value of the rule for the path itself, or for the nearest folder above it; None where there is no rule."""
    above = [key for key in rules if _holds(key, path)]
    return rules[max(above, key=len)] if above else None


def default_limit(path: str) -> UsageLimit:
    """The limit where nothing is configured: lower for scratch filesystems, which fill faster."""
    return UsageLimit(ratio=SCRATCH if _SCRATCH.search(path) else BYTES)


def usable(rules: Mapping[str, float], path: str, fstype: str) -> float:
    """The share of a filesystem (0 to 1) that can be filled before writes fail: the rule for its path, else by its type."""
    above = [key for key in rules if _holds(key, path)]
    if above:
        return rules[max(above, key=len)]
    return USABLE.get(fstype, 1.0)


def _holds(folder: str, path: str) -> bool:
    bare = folder.rstrip("/")
    return path == bare or path.startswith(f"{bare}/")
