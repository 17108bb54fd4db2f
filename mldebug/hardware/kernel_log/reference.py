"""The reference page of what is read in the kernel's log, made from the catalogue and the kinds of events."""

from collections.abc import Iterator

from mldebug.hardware.kernel_log.attribution import PLAIN
from mldebug.hardware.kernel_log.bursts import LATE, WINDOW
from mldebug.hardware.kernel_log.counts import RECENT
from mldebug.hardware.kernel_log.model import KernelEventKind, is_gpu
from mldebug.hardware.kernel_log.xids import ACTION_WORDS, ORDER, Catalogue, Tier

HEAD = """\
# What the kernel's log tells

<!-- Made from mldebug/hardware/kernel_log/ by
     pytest tests/docs/test_xids_page.py --update-golden
     Do not edit. -->

The agent reads `/dev/kmsg`: the last hours of it when it starts, then what comes. It needs `CAP_SYSLOG` where
`dmesg_restrict=1`; without it, `mldebug_kernel_log_readable` is 0 and a named gap says so. Xids also come through NVML;
what both tell counts once.

What one GPU, process, server or link says within {window:.0f} seconds of its last line is one event with a count. The first
one is its root, but for those that only follow from another (marked *follows*). NVML may tell up to {late:.0f} s late.

An event concerns the rank whose process, or whose child, its lines name; else the ranks on that GPU; else the node.
Where only the environment says on which GPU a rank works (local rank 3 of `CUDA_VISIBLE_DEVICES`) it is "probably rank 3".
What a program wrote into the log itself (`echo … > /dev/kmsg`) is not believed, nor what a program is called: the kernel
begins some lines with a name that any user may choose.

Where the kernel overwrites lines before the agent has read them, a gap with their number says so for {told:.0f} minutes, in
`status` and in reports, and no end is taken for one from outside because the log is silent about it.
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
        (HEAD.format(window=WINDOW, late=LATE, told=RECENT / 60), *_kinds(), *_xids(catalogue))
    )


def _kinds() -> Iterator[str]:
    yield "## Events beside Xids\n"
    yield "| `kind` | meaning |"
    yield "|---|---|"
    for kind in KernelEventKind:
        if not is_gpu(kind):
            yield f"| `{kind.value}` | {PLAIN[kind]} |"
    yield f"| `{KernelEventKind.GPU_LOST.value}` | a GPU has fallen off the bus; counts as Xid 79 as well, once |"
    yield f"| `{KernelEventKind.GPU_INIT_FAILED.value}` | the driver cannot start a GPU (RmInitAdapter): it is dead until a reset, a power cycle or a repair |"
    yield f"| `{KernelEventKind.SXID.value}` | an NVSwitch reports an error, and whether it is fatal |\n"


def _xids(catalogue: Catalogue) -> Iterator[str]:
    yield f"## Xids\n\nVersion {catalogue.version} of the catalogue, `mldebug/hardware/kernel_log/xids.yaml`. Tiers:\n"
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
