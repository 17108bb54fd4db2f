"""Versions of PyTorch and NCCL as their makers write them, and spans of versions. Pure.

A version before its release (`2.6.0a0+ecf3bae`, a nightly, a vendor's build) lies between two releases: whether it has a
fault that came or went with the second one nobody can tell, so no span that begins or ends there holds it.
"""

import re

import msgspec

_VERSION = re.compile(
    r"\s{0,4}v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?P<rest>[\w.+-]{0,80})\s{0,4}"
)
_EARLY = re.compile(r"[-._]?(?:a|b|rc|alpha|beta|dev|pre|git)\d{0,12}", re.IGNORECASE)

Release = tuple[int, int, int]


class Version(msgspec.Struct, frozen=True):
    """One version: its release, and whether it is one that came before it."""

    release: Release
    early: bool = False
    local: str = ""  # what follows the plus sign: cu126, cpu, rocm6.2

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + (" (before its release)" if self.early else "")


def parse_version(text: str) -> Version | None:
    """`2.13.0a0+gitabc` -> 2.13.0, early, "gitabc"; None for what is no version."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    public, _, local = found["rest"].partition("+")
    early = _EARLY.match(public) is not None
    if public and not early and not re.fullmatch(r"(?:\.?post\d{1,6}|\.\d{1,6}|-\d{1,6})", public):
        return None
    return Version((major, minor, patch), early, local)


ANY: Release = (10_000, 0, 0)
"""Later than every version: no release is well again."""


class Span(msgspec.Struct, frozen=True):
    """The versions from `since` on, up to `until`, which is the first that is well again."""

    of: str  # torch, nccl
    since: Release
    until: Release

    def holds(self, version: Version | None) -> bool:
        """Is it surely one of them? False for a version that is not known."""
        if version is None or (version.early and version.release in (self.since, self.until)):
            return False
        return self.since <= version.release < self.until

    def words(self) -> str:
        """`PyTorch ≥ 2.7.0, < 2.7.1`."""
        since, until = (".".join(map(str, one)) for one in (self.since, self.until))
        return f"{TITLES[self.of]} ≥ {since}" + ("" if self.until == ANY else f", < {until}")


TITLES = {"torch": "PyTorch", "nccl": "NCCL"}
