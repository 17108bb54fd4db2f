"""The reference page of what is read in the kernel's log, made from the catalogue and the kinds of events."""

from collections.abc import Iterator

from mldebug.hardware.health.kernel_rules import KERNEL_RULES, KernelRule
from mldebug.hardware.health.model import ACTION_WORDS as ADVICE
from mldebug.hardware.kernel_log.attribution import PLAIN
from mldebug.hardware.kernel_log.bursts import LATE, REPEAT, WINDOW
from mldebug.hardware.kernel_log.counts import RECENT
from mldebug.hardware.kernel_log.fabric_manager import CONFIGS, LOG
from mldebug.hardware.kernel_log.model import KernelEventKind
from mldebug.hardware.kernel_log.xids import ACTION_WORDS, ORDER, Catalogue, Tier

HEAD = """\
# What the kernel's log tells

<!-- Made from mldebug/hardware/kernel_log/ by
     pytest tests/docs/test_xids_page.py --update-golden
     Do not edit. -->

The agent reads `/dev/kmsg`: the last six hours of it when it starts, and what lasts until the next boot from all of it, then what comes. It needs `CAP_SYSLOG` where
`dmesg_restrict=1`; without it, `mldebug_kernel_log_readable` is 0 and a named gap says so. Xids also come through NVML;
what both tell counts once.

Beside it the agent reads the **log of NVIDIA's Fabric Manager** each 10 s, where its settings lie in their place
(`{configs}`, also below `/run/nvidia/driver`): `LOG_FILE_NAME` of it, `{fabric_log}` if it names none.
Its errors of NVSwitches count as SXids, and once where the kernel tells of them as well; the kinds `fabric_…` come from there alone. A file that others
than root can write is not believed, and that is a named gap. A log that goes to syslog (`LOG_USE_SYSLOG=1`), `nv-hostengine`'s and the journal are not read. Written after
lines that people posted, not tried beside an NVSwitch that is broken.

What one GPU, process, server or link says within {window:.0f} seconds of its last line is one event with a count. The first
one is its root, but for those that only follow from another (marked *follows*). NVML may tell up to {late:.0f} s late. Faults of which
the kernel tells again while they last are one event as long as it does: a locked-up CPU, a hung process, an RCU stall, a queue that sends
nothing, a disk that does not come back, a GPU that its driver may not use before a reset.

An event concerns the rank whose process, or whose child, its lines name; else the ranks on that GPU; else the node.
Where only the environment says on which GPU a rank works (local rank 3 of `CUDA_VISIBLE_DEVICES`) it is "probably rank 3".
What a program wrote into the log itself (`echo … > /dev/kmsg`) is not believed, nor what a program is called: the kernel
begins some lines with a name that any user may choose.

Where the kernel overwrites lines before the agent has read them, a gap with their number says so for {told:.0f} minutes, in
`status` and in reports, and no end is taken for one from outside because the log is silent about it.
"""

KINDS_HEAD = """\
Each belongs to a component of the node's health. Where nothing else is said, it counts for `event_window` (2 h) after its last line; what is
told only of what went wrong before (`nic_ok`, `filesystem_ok`, `disk_ok`, `ceph_ok`, `weka_ok`, `gpu_driver_ok`, `fabric_ok`) is no event otherwise. Limits are set under
`health: {thresholds: …}`. A row without a state is shown, and no fault of the node by itself. The lines of `amdgpu` are from its source
and from public logs, not tried on a card. Checks of NVIDIA's driver that fail (`gpu_reset_required`, `gpu_unreachable`, `gpu_driver_failed`)
name no GPU: they count for the node, until the driver takes back what it had asked for (Xid 154), or GPUs were reset.
A suspended pool of ZFS ends by the line of OpenZFS 2.3, of earlier ones by `/proc/spl/kstat/zfs/POOL/state`, and with
`failmode=continue`, where that never calls it suspended, by transactions that it commits again (`…/POOL/txgs`). GPFS (Storage Scale) writes into a log of its own: of it the
kernel's has the panic of its deadman switch alone, and the [watch of filesystems](storage.md) sees mounts that hang or are gone.
"""

DRIVER_HEAD = """\
**What the driver asks for** (Xid 154) is obeyed: of the Xid before it and of the driver's own wish the greater counts, until the driver takes
it back (`… to 0x0 (None)` after a reset, or NVML's recovery action twice), which ends everything that this GPU had reported before. Xid 45 that is `caused by previous Xid N`
counts as Xid N. A GPU error that comes again within {repeat:.0f} seconds is the same event.

**NVLink 5** (144 to 150) is judged by the table `nvlink5` of the catalogue, which the line's unit and numbers select from: nonfatal errors that
the catalogue says to ignore are nothing, those that ask for Xid 154 mean a restart of the job where none comes, fatal ones a reset.
**SXids** go by their line: nonfatal is nothing to do (but {impact}, which stop a GPU's traffic), fatal asks for a reset, and those that
are always fatal to the fabric ({fatal}) for a reboot.
"""

TIERS = {
    Tier.FATAL: "the GPU or its node is to blame: take it out",
    Tier.WARNING: "look at it in the next maintenance window; it may end one job",
    Tier.APPLICATION: "look at the job first: the node is not to be blamed",
    Tier.INFORMATION: "nothing to do",
    Tier.UNKNOWN: "the number is not in the catalogue",
}


def page(catalogue: Catalogue) -> str:
    """The reference page of all kernel events and Xids, in Markdown."""
    return "\n".join(
        (
            HEAD.format(
                configs="`, `".join(f"/{one}" for one in CONFIGS),
                fabric_log=LOG,
                window=WINDOW,
                late=LATE,
                told=RECENT / 60,
            ),
            *_kinds(),
            *_xids(catalogue),
        )
    )


def _kinds() -> Iterator[str]:
    yield "## Events beside Xids\n"
    yield KINDS_HEAD
    yield "| `kind` | meaning | component | health | until | what to do |"
    yield "|---|---|---|---|---|---|"
    for kind, rule in KERNEL_RULES.items():
        yield f"| `{kind.value}` | {PLAIN[kind]} | {_cells(rule)} |"
    yield f"| `{KernelEventKind.GPU_LOST.value}` | a GPU has fallen off the bus; counts as Xid 79 as well, once | `gpu_xid` | unhealthy | | {ACTION_WORDS['reboot_node']} |"
    yield f"| `{KernelEventKind.GPU_INIT_FAILED.value}` | the driver cannot start a GPU (RmInitAdapter), or did not even take it: it is dead until a reset, a power cycle or a repair | `gpu_xid` | unhealthy | | {ACTION_WORDS['check_hardware']} |"
    yield f"| `{KernelEventKind.SXID.value}` | an NVSwitch reports an error, and whether it is fatal | `gpu_xid` | by its line, see below | | |\n"


def _cells(rule: KernelRule) -> str:
    """Component, state, end and action of one kind of event."""
    if rule.state is None:
        return f"`{rule.component}` | | | "
    state = rule.state.value + (f", more than `{rule.limit}`" if rule.limit else "")
    ends = [f"`{kind.value}`" for kind in rule.ended_by]
    until = " or ".join([*ends, "the next boot" if rule.lasting else ""]).removesuffix(" or ")
    until += f", but not after more than `{rule.again}`" if rule.again else ""
    return f"`{rule.component}` | {state} | {until} | {ADVICE[rule.action]}"


def _xids(catalogue: Catalogue) -> Iterator[str]:
    yield "## Xids\n"
    lists = catalogue.sxids
    numbers = [
        ", ".join(map(str, sorted(one))) for one in (lists.nonfatal_with_impact, lists.always_fatal)
    ]
    yield DRIVER_HEAD.format(repeat=REPEAT, impact=numbers[0], fatal=numbers[1])
    yield f"Version {catalogue.version} of the catalogue, `mldebug/hardware/kernel_log/xids.yaml`. Its sources:\n"
    yield from (f"* {source}" for source in catalogue.sources)
    yield "\nTiers:\n"
    for tier in reversed(ORDER):
        yield f"* **{tier.value}**: {TIERS[tier]}"
    yield "\n| Xid | name | class | tier | meaning | what to do | |"
    yield "|---|---|---|---|---|---|---|"
    for row in catalogue.xids:
        todo = ACTION_WORDS[row.action] + (f"; {row.advice}" if row.advice else "")
        cells = (row.xid, f"`{row.name}`", row.class_, row.tier.value, row.meaning, todo)
        row_text = " | ".join(str(cell) for cell in cells)
        yield f"| {row_text} | {'*follows*' if row.follows else ''} |"
    yield ""
