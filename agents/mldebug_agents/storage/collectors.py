"""All collectors of storage that only read, as the agent and `mldebug status` use them."""

from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.dir_sizes.collector import DirSizeCollector
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.storage.filesystems.kernel_quotas import KernelQuotaCollector
from mldebug_agents.storage.filesystems.latency import LatencyCollector
from mldebug_agents.storage.filesystems.quotas import QuotaCollector
from mldebug_agents.storage.monitor import StorageCollector
from mldebug_agents.storage.write_rates.collector import WriteRateCollector
from mldebug_agents.system.context import Context


def storage_collectors(context: Context, probe: MountClient) -> list[StorageCollector]:
    """All collectors that only read; the agent has one beside them that writes (`CanaryCollector`)."""
    writers = WriteRateCollector(context)
    filesystems = FilesystemCollector(context, probe, writers.who_fills)
    return [  # collectors that ask another one, in another thread, only read one value of it
        filesystems,
        LatencyCollector(context, lambda: filesystems.used),
        QuotaCollector(context),
        KernelQuotaCollector(context, probe),
        DirSizeCollector(context, writers.folders),
        writers,
    ]
