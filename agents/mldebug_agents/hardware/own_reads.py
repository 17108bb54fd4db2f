"""Readings of GPUs and kernel log that a command takes itself: each once, or twice where a change between two readings is needed."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import Gap, Job
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.gpu.node_reader import NodeReader
from mldebug_agents.hardware.gpu.reads import GpuNews, GpuOrder, GpuReads, gpu_slots
from mldebug_agents.hardware.kernel_log import KernelNews, kernel_log_of
from mldebug_agents.system.context import Context


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of the GPUs that a command took itself, without an agent."""

    before: GpuNews = GpuNews()  # the full read before, where two were made
    full: GpuNews = GpuNews()
    watch: GpuNews = GpuNews()
    again: GpuNews = GpuNews()  # what moves, a little later, where that was asked for
    no_library: bool = False
    gap: Gap | None = None


def read_gpus(
    context: Context,
    gpus: NodeReader,
    jobs: Sequence[Job],
    between: float = 0.0,
    excluded: tuple[ExcludedGpu, ...] = (),
    again: Callable[[], object] | None = None,
) -> Iterator[GpuPart]:
    """Read the GPUs: quick values, then all, once or twice (`between` seconds apart); yields all that is known after each.

    Errors of a driver become a gap and are not raised. `excluded`: GPUs that must not be queried. `again`: waits until another
    quick reading is due; None: there is none.
    """
    holders = Holders(context.host, context.reader)
    reads = GpuReads(gpus, holders, partial(gpu_slots, context.host))
    order = GpuOrder({job.id: job.ranks for job in jobs}, excluded)
    part = GpuPart()
    try:
        part = GpuPart(watch=reads(GpuOrder(excluded=excluded)))
        if part.watch.watch is None:
            yield GpuPart(no_library=True)
            return
        yield part
        first = reads(order)
        part = msgspec.structs.replace(part, before=first, full=first)
        yield part
        if between:
            time.sleep(between)
            part = msgspec.structs.replace(part, full=reads(order))
            yield part
        if again is not None:
            again()
            yield msgspec.structs.replace(part, again=reads(GpuOrder(excluded=excluded)))
    except MldebugError as error:
        gap = Gap(what="GPUs", reason=error.message, way_out=error.way_out)
        yield msgspec.structs.replace(part, gap=gap)


def read_kernel(context: Context, until: float) -> KernelNews:
    """Read the kernel log of the last hours and the Fabric Manager's, at most until `until` (monotonic seconds)."""
    source = kernel_log_of(context)
    try:
        news = source.read()
        while news.behind and time.monotonic() < until - 0.5:
            news = source.read()
        return news
    finally:
        source.close()
