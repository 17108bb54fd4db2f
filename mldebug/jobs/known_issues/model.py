"""What a rule for a known issue is, and the facts that rules look at: versions, settings, the node, and NCCL's lines in the log.

Versions are those of PyTorch and NCCL as their makers write them. A version before its release (`2.6.0a0+ecf3bae`, a nightly, a
vendor's build) lies between two releases: nobody can tell whether it has a fault that came or went with the second one, so no span
that begins or ends there holds it. Pure.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.jobs.known_issues.nccl_log import NcclLogFacts

_VERSION = re.compile(
    r"\s{0,4}v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?P<rest>[\w.+-]{0,80})\s{0,4}"
)


_EARLY = re.compile(r"[-._]?(?:a|b|rc|alpha|beta|dev|pre|git)\d{0,12}", re.IGNORECASE)


Release = tuple[int, int, int]
ANY: Release = (10_000, 0, 0)
"""Later than every version: no release is well again."""
TITLES = {"torch": "PyTorch", "nccl": "NCCL"}
_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class Version(msgspec.Struct, frozen=True):
    """A version number: its release, whether it came before that release (`early`), and the local part behind `+`."""

    release: Release
    early: bool = False
    local: str = ""  # what follows the plus sign: cu126, cpu, rocm6.2

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + (" (before its release)" if self.early else "")


def parse_version(text: str) -> Version | None:
    """Parse a version: `2.13.0a0+gitabc` is release 2.13.0, early, local "gitabc". None for text that is no version."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    public, _, local = found["rest"].partition("+")
    early = _EARLY.match(public) is not None
    if public and not early and not re.fullmatch(r"(?:\.?post\d{1,6}|\.\d{1,6}|-\d{1,6})", public):
        return None
    return Version((major, minor, patch), early, local)


class VersionSpan(msgspec.Struct, frozen=True):
    """The versions from `since` on and below `until`, the first one without the issue."""

    of: str  # torch, nccl
    since: Release
    until: Release

    def holds(self, version: Version | None) -> bool:
        """Whether a version is certainly inside the span; False for None, and for a pre-release of `since` or `until`."""
        if version is None or (version.early and version.release in (self.since, self.until)):
            return False
        return self.since <= version.release < self.until

    def words(self) -> str:
        """The span in words: `PyTorch ≥ 2.7.0, < 2.7.1`."""
        since, until = (".".join(map(str, one)) for one in (self.since, self.until))
        return f"{TITLES[self.of]} ≥ {since}" + ("" if self.until == ANY else f", < {until}")


class Software(MeasuredData, frozen=True, kw_only=True):
    """The versions that a rank has loaded; "" where one is not known."""

    torch: str = ""  # 2.6.0+cu124
    nccl: str = ""  # 2.21.5
    rocm: bool = False  # PyTorch is built for AMD's GPUs


class NodeFacts(MeasuredData, frozen=True, kw_only=True):
    """The facts of a node that the rules for known issues read."""

    machine: str = ""  # x86_64, aarch64
    rdma: tuple[str, ...] = ()  # devices with an active port
    iommu: bool = False  # the kernel uses one
    kernel_arguments: tuple[str, ...] = ()
    hosts: dict[str, str] = {}  # address -> name, of /etc/hosts
    cores: int = 0  # logical CPUs; 0: not known


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the rules for known issues read, of those ranks of a job on one node that have the same versions and
    settings.
    """

    torch: Version | None = None
    nccl: Version | None = None  # None where there is none, or its version is not known
    rocm: bool = False
    settings: Mapping[str, str] = {}  # of the allow-list alone
    cores: int = 0  # logical CPUs that each of these ranks may use; 0: not known
    gpu: bool | None = None  # a rank of it has a GPU open; None: nobody has looked
    several_ranks: bool = False
    several_nodes: bool = False
    node: NodeFacts = NodeFacts()
    nccl_log: NcclLogFacts = NcclLogFacts()

    @property
    def on_cpus(self) -> bool:
        """Whether this is certainly a PyTorch without GPU support: its version is known and names no CUDA, and there is neither
        NCCL nor ROCm.
        """
        if self.torch is None or self.nccl is not None or self.rocm:
            return False
        return not self.torch.local.startswith("cu")

    def version(self, of: str) -> Version | None:
        """The version of `torch` or `nccl`; None where it is not known."""
        return self.torch if of == "torch" else self.nccl

    def is_on(self, *names: str) -> str:
        """`NAME=1` for the first of these settings that is set, if its value means "on"; "" otherwise."""
        return self._switch(names, _ON)

    def is_off(self, *names: str) -> str:
        """`NAME=0` for the first of these settings that is set, if its value means "off"; "" otherwise."""
        return self._switch(names, _OFF)

    def _switch(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        name = next((name for name in names if name in self.settings), "")
        value = self.settings.get(name, "").strip()
        return f"{name}={value}" if value.lower() in values else ""


class IssueRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule for one known issue. A job has the issue where its versions are in all `spans` and `check`, if there is one, finds
    something.
    """

    name: str
    wrong: str  # what is wrong, after what was seen: "torch 2.6.0: …"
    todo: str
    source: str  # URL
    when: str = ""  # the further condition in words, for the reference page
    spans: tuple[VersionSpan, ...] = ()
    reads: tuple[str, ...] = ()  # settings that it reads
    check: Callable[[JobFacts], str] | None = None  # the finding in words, "" for none

    def finding(self, facts: JobFacts) -> str:
        """What shows in these facts that the job has the issue, in words; "" where it has not."""
        if not all(span.holds(facts.version(span.of)) for span in self.spans):
            return ""
        versions = [f"{TITLES[span.of]} {facts.version(span.of)}" for span in self.spans]
        more = self.check(facts) if self.check else ""
        return " and ".join((*versions, *filter(None, (more,)))) if more or not self.check else ""
