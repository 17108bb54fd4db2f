"""Makes the monitors of an agent, each with the readers and workers of its subject."""

from functools import partial

from mldebug.config.schema import Config
from mldebug.core.plugins import create_all
from mldebug_agents.agent.loop_parts import Inbox
from mldebug_agents.agent.monitors import Monitors
from mldebug_agents.agent.node_tools import NodeTools
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.alerts.action_runner.runner import ActionRunner
from mldebug_agents.alerts.notifier import AlertNotifier
from mldebug_agents.fleet import monitor as fleet
from mldebug_agents.fleet.outbox import Outbox
from mldebug_agents.fleet.setup import HubClient
from mldebug_agents.hardware import monitor as hardware
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.gpu.reads import GpuReads, GpuSource, gpu_slots
from mldebug_agents.hardware.host_memory import monitor as host_memory
from mldebug_agents.hardware.host_memory.reader import MemoryWatch
from mldebug_agents.hardware.kernel_log import kernel_log_of, sees_kernel_pids
from mldebug_agents.hardware.ports import monitor as ports
from mldebug_agents.hardware.ports.reader import PortReader
from mldebug_agents.jobs.run_records import monitor as records
from mldebug_agents.jobs.run_records.reader import RunRecordReader
from mldebug_agents.jobs.scheduler_monitor import SchedulerMonitor
from mldebug_agents.probes.history import monitor as probes
from mldebug_agents.probes.history import scheduled
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.state.store import StateStore
from mldebug_agents.storage.checkpoints import monitor as checkpoints
from mldebug_agents.storage.checkpoints.reader import CheckpointReader
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.monitor import StorageMonitor
from mldebug_agents.system.context import Context
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.system.workers import Worker
from mldebug_agents.watch.goodput_monitor import GoodputMonitor
from mldebug_agents.watch.scalar_monitor import ScalarMonitor


def build_monitors(
    config: Config,
    tools: NodeTools,
    store: StateStore,
    inbox: Inbox,
    notifier: AlertNotifier,
    captures: CaptureRequests,
    goodput: GoodputMonitor,
    clock: Clock,
    hub: HubClient | None,
) -> Monitors:
    """Make all monitors of an agent, its notifier and its action runner. Results of all their workers go to `inbox`.
    `clock`: the clock that dates incidents. `hub`: where the fleet's events go; None: nowhere.
    """
    context = tools.context
    parts = storage_collectors(context, tools.filesystem_probe, canary=True)
    memory = MemoryWatch(context.host, context.reader)
    port_reader = PortReader(context.host, context.reader)
    history = probes.ProbeHistoryReader(config.agent.state_dir, context.reader)
    starter = scheduled.ProbeStarter(context.spawner, config.agent.state_dir)
    return Monitors(
        hardware=hardware_monitor(context, store, inbox, tools.gpus),
        notifier=notifier,
        actions=ActionRunner(config, context, captures, store, notifier.registry, inbox),
        storage=StorageMonitor(parts, store, inbox),
        checkpoints=checkpoint_monitor(config, context, store, inbox),
        memory=host_memory.HostMemoryMonitor(
            Worker("memory", memory.look, inbox, host_memory.DEADLINE)
        ),
        ports=ports.PortMonitor(
            Worker("ports", port_reader.look, inbox, ports.DEADLINE),
            context.node,
            store,
            context.host.boot_id(),
        ),
        schedulers=SchedulerMonitor(config, context, inbox),
        probes=probes.ProbeHistoryMonitor(
            Worker(probes.WORKER, history.look, inbox, probes.DEADLINE)
        ),
        scheduled_probes=scheduled.ScheduledProbes(
            Worker(scheduled.WORKER, starter.run, inbox, scheduled.DEADLINE),
            *(store, clock.now, clock.steady),
        ),
        goodput=goodput,
        scalars=ScalarMonitor(store, clock.now, clock.steady),
        records=records.RunRecordMonitor(
            Worker(
                *(records.WORKER, RunRecordReader(context.host, context.reader).look),
                *(inbox, records.DEADLINE),
            ),
            *(store, context.node, clock.now, clock.steady),
        ),
        fleet=fleet_monitor(config, context, store, inbox, notifier, hub),
    )


def fleet_monitor(
    config: Config,
    context: Context,
    store: StateStore,
    inbox: Inbox,
    notifier: AlertNotifier,
    hub: HubClient | None,
) -> fleet.FleetMonitor:
    """The monitor that sends events to the hub; it does nothing where there is none."""
    worker = Worker(fleet.WORKER, lambda order: hub.deliver(order.body), inbox, fleet.DEADLINE) if hub else None  # fmt: skip
    return fleet.FleetMonitor(
        context.node,
        hub.address if hub else "",
        Outbox(store, config.fleet.events, config.fleet.size),
        worker,
        alerts=notifier.registry.all,
        opened=lambda: store.opened,
    )


def hardware_monitor(
    context: Context, store: KeyValueStore, inbox: Inbox, gpus: GpuSource
) -> hardware.HardwareMonitor:
    """The monitor of the GPUs and the kernel's log of this node."""
    reads = GpuReads(gpus, Holders(context.host, context.reader), partial(gpu_slots, context.host))
    kernel = kernel_log_of(context)
    workers = {
        "gpus": Worker("gpus", reads, inbox, hardware.GPU_DEADLINE),
        "kernel": Worker("kernel", kernel.read, inbox, hardware.KERNEL_DEADLINE),
    }
    pids = sees_kernel_pids(context.host)
    return hardware.HardwareMonitor(context.node, store, workers, kernel_pids=pids, gpus=gpus)


def checkpoint_monitor(
    config: Config, context: Context, store: KeyValueStore, inbox: Inbox
) -> checkpoints.CheckpointMonitor:
    """The monitor of the runs' checkpoints.

    It has a reader child of its own, so that a slow folder listing delays no other read.
    """
    reader = CheckpointReader(context.host, context.reader.another(), create_all("checkpoints"))
    worker = Worker("checkpoints", reader.look, inbox, checkpoints.DEADLINE)
    return checkpoints.CheckpointMonitor(context.host, worker, store, config.checkpoints)
