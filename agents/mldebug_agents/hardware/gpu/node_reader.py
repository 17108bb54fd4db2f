"""All GPUs of this node: one `VendorReader`, with a child of its own, for each vendor.

A vendor whose library is not there costs no more than a look for it every five minutes. Where one of several vendors cannot be
read, the GPUs of the others are read all the same, and a gap says which are missing and why.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mldebug.core.errors import MldebugError
from mldebug.core.model import Gap
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import names
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import NVIDIA, NodeGpus, NodeWatch
from mldebug.hardware.gpu.vendors import highest_number, join_full_reads, join_watches, of_vendor
from mldebug_agents.hardware.gpu.errors import GpusReleasedError, NoGpuLibraryError
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.link import WorkerStarter
from mldebug_agents.system.host import Host

T = TypeVar("T", NodeWatch, NodeGpus)


class NodeReader:
    """Reads the GPUs of all vendors, one vendor after the other. Any thread may call; calls take turns."""

    def __init__(self, readers: Sequence[VendorReader]) -> None:
        """`readers`: one for each vendor; the GPUs of the first keep the numbers that their driver gives them."""
        self._readers = tuple(readers)
        self._numbers = [0] * len(self._readers)  # that the GPUs of each have taken so far

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        """Take a quick reading (what changes often) of the GPUs of all vendors. `excluded`: GPUs that must not be touched.
        If no vendor could be read, raises the same errors as `VendorReader.watch`.
        """
        reads, gaps = self._each(lambda reader: reader.watch(excluded))
        return reads[0] if len(reads) == 1 and not gaps else join_watches(reads, gaps)

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        """Read all values of the GPUs of all vendors. `excluded`: GPUs that must not be touched. If no vendor could be
        read, raises the same errors as `VendorReader.full`.
        """
        reads, gaps = self._each(lambda reader: reader.full(excluded))
        return reads[0] if len(reads) == 1 and not gaps else join_full_reads(reads, gaps)

    @property
    def released_seconds(self) -> float:
        """Seconds for which the GPUs are still not touched after `release`; 0.0 where they are read as usual."""
        return max(reader.released_seconds for reader in self._readers)

    def release(self, seconds: float) -> None:
        """Close all handles on GPUs for `seconds`, so that somebody can reset a GPU; 0 ends an earlier release. Returns at once."""
        for reader in self._readers:
            reader.release(seconds)

    def let_go(self) -> bool:
        """Whether all children have ended, so that this agent holds no GPU. Returns at once."""
        gone = [one.let_go() for one in self._readers]  # each of them, whatever the others answer
        return all(gone)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Children that hang and may outlive this agent, as records for the agent that runs after it."""
        return tuple(left for reader in self._readers for left in reader.leftovers())

    def close(self) -> None:
        """Close the connections to all child processes that read GPUs, so that they end. A child that is blocked in the GPU
        driver ends only when that call returns.
        """
        for reader in self._readers:
            reader.close()

    def _each(self, read: Callable[[VendorReader], T]) -> tuple[list[T], list[Gap]]:
        """What each vendor answers, and why others do not; raises where none answers."""
        reads: list[T] = []
        failures: list[tuple[VendorReader, MldebugError]] = []
        absent: NoGpuLibraryError | None = None
        for place, reader in enumerate(self._readers):
            try:
                reads.append(self._numbered(place, read(reader)))
            except GpusReleasedError:
                raise  # all are: what the others told before is no reading of this moment
            except NoGpuLibraryError as error:
                absent = absent or error
            except MldebugError as error:
                failures.append((reader, error))
        if not reads:
            raise failures[0][1] if failures else absent or NoGpuLibraryError("no GPU vendor")
        return reads, [
            Gap(what=f"GPUs of {reader.vendor}", reason=error.message, way_out=error.way_out)
            for reader, error in failures
        ]

    def _numbered(self, place: int, read: T) -> T:
        """The reading with numbers behind those of the vendors before; unchanged where there are none."""
        vendor, first = self._readers[place].vendor, sum(self._numbers[:place])
        self._numbers[place] = max(self._numbers[place], highest_number(read) + 1)
        return read if vendor == NVIDIA and not first else of_vendor(read, vendor, first)


def node_reader(starter: WorkerStarter, host: Host, configured: Mapping[str, Plugin]) -> NodeReader:
    """The reader of this node's GPUs. `configured`: the section `gpus`; empty: every vendor that has a file, NVIDIA first."""
    if not configured:
        vendors = sorted(names("gpus"), key=lambda name: (name != NVIDIA, name))
        return NodeReader([VendorReader(starter, host, name) for name in vendors])
    return NodeReader(
        [VendorReader(starter, host, one.kind, one.options) for one in configured.values()]
    )
