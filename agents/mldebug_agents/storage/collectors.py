"""All collectors of storage that only read, as the agent and `mldebug status` use them."""

from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.dir_sizes.collector import DirSizeCollector
from mldebug_agents.storage.filesystems.canary import CanaryCollector
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.storage.filesystems.kernel_quotas import KernelQuotaCollector
from mldebug_agents.storage.filesystems.latency import LatencyCollector
from mldebug_agents.storage.filesystems.quotas import QuotaCollector
from mldebug_agents.storage.filesystems.read_canary import ReadCanaryCollector
from mldebug_agents.storage.monitor import StorageCollector
from mldebug_agents.storage.write_rates.collector import WriteRateCollector
from mldebug_agents.system.context import Context


def storage_collectors(
    context: Context, probe: MountClient, *, canary: bool = False
) -> list[StorageCollector]:
    """All collectors that only read. `canary`: also those of `storage.canary`, which write or read data where the configuration says so:
    for the agent alone, no command does that.
    """
    writers = WriteRateCollector(context)
    filesystems = FilesystemCollector(context, probe, writers.who_fills)
    latency = LatencyCollector(context, lambda: filesystems.used)
    reading: list[
        StorageCollector
    ] = [  # those that ask another one, in another thread, only read one value of it
        filesystems,
        latency,
        QuotaCollector(context),
        KernelQuotaCollector(context, probe),
        DirSizeCollector(context, writers.folders),
        writers,
    ]
    if not canary:
        return reading
    used, counted = lambda: filesystems.used, lambda: latency.counted
    reads = ReadCanaryCollector(context, used, counted, writers.moved)
    return [*reading, reads, CanaryCollector(context, probe, writers.written)]
