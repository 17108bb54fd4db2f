"""What the rules look at: what one job runs, its settings, its node and what NCCL said in its log. All of it is only read."""

from collections.abc import Callable, Mapping

import msgspec

from mldebug.core.model import Noun
from mldebug.jobs.known_issues.nccl_log import NcclSaid
from mldebug.jobs.known_issues.version import TITLES, Span, Version


class Software(Noun, frozen=True, kw_only=True):
    """What a rank has loaded; "" where it is not known."""

    torch: str = ""  # 2.6.0+cu124
    nccl: str = ""  # 2.21.5
    rocm: bool = False  # PyTorch is built for AMD's GPUs


class NodeFacts(Noun, frozen=True, kw_only=True):
    """What the rules must know of a node."""

    machine: str = ""  # x86_64, aarch64
    rdma: tuple[str, ...] = ()  # devices with an active port
    iommu: bool = False  # the kernel uses one
    kernel_arguments: tuple[str, ...] = ()
    hosts: dict[str, str] = {}  # address -> name, of /etc/hosts
    cores: int = 0  # logical CPUs; 0: not known


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one node, as ranks that run the same with the same settings see it."""

    torch: Version | None = None
    nccl: Version | None = None  # None where there is none, or its version is not known
    rocm: bool = False
    settings: Mapping[str, str] = {}  # of the allow-list alone
    cores: int = 0  # logical CPUs that each of these ranks may use; 0: not known
    gpu: bool | None = None  # a rank of it has a GPU open; None: nobody has looked
    several_ranks: bool = False
    several_nodes: bool = False
    node: NodeFacts = NodeFacts()
    said: NcclSaid = NcclSaid()

    @property
    def on_cpus(self) -> bool:
        """Is this PyTorch known, and nothing of a GPU with it: no NCCL, none for ROCm, no CUDA in its name?"""
        if self.torch is None or self.nccl is not None or self.rocm:
            return False
        return not self.torch.local.startswith("cu")

    def version(self, of: str) -> Version | None:
        """Of `torch` or `nccl`."""
        return self.torch if of == "torch" else self.nccl

    def is_on(self, *names: str) -> str:
        """`NAME=1` for the first of these settings, if it is switched on; "" otherwise."""
        return self._switch(names, _ON)

    def is_off(self, *names: str) -> str:
        """`NAME=0` for the first of these settings, if it is switched off; "" otherwise."""
        return self._switch(names, _OFF)

    def _switch(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        name = next((name for name in names if name in self.settings), "")
        value = self.settings.get(name, "").strip()
        return f"{name}={value}" if value.lower() in values else ""


_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One known trap. It is there where all spans hold and `seen` tells something."""

    name: str
    wrong: str  # what is wrong, after what was seen: "torch 2.6.0: …"
    todo: str
    source: str  # URL
    when: str = ""  # what else must be so, in words, for the reference page
    spans: tuple[Span, ...] = ()
    reads: tuple[str, ...] = ()  # settings that it looks at
    seen: Callable[[Facts], str] | None = None  # "" where it is not so

    def tell(self, facts: Facts) -> str:
        """What was seen of it, "" where it is not there."""
        if not all(span.holds(facts.version(span.of)) for span in self.spans):
            return ""
        versions = [f"{TITLES[span.of]} {facts.version(span.of)}" for span in self.spans]
        more = self.seen(facts) if self.seen else ""
        return " and ".join((*versions, *filter(None, (more,)))) if more or not self.seen else ""
