"""Storage and probes: what is full or does not answer, what would be lost, and how fast the network was when it was measured."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from parts import (
    BAD,
    GOOD,
    NODE,
    ODD,
    IncidentsBuilder,
    Panel,
    board,
    lines,
    number,
    page,
    runbook,
    stacked,
)

HERE = 'instance=~"$node"'
MOUNT = "{{instance}} {{mount}}"
SAVE = "{{run}} {{folder}} {{series}}"
RATE = "[$__rate_interval]"


def build() -> Dashboard:
    """For the one who has to make room."""
    made = board("mldebug-storage", "mldebug: storage and probes", "What is full or does not answer, what would be lost, how fast collectives were.", NODE)  # fmt: skip
    made.annotation(IncidentsBuilder(HERE))
    for panel in (*_figures(), *_room(), *_writes(), *_saves(), *_probes()):
        made.with_panel(panel)
    return made


def _figures() -> tuple[Panel, ...]:
    return (
        number("Longest without an answer", "Since when a call to the worst filesystem has not come back. Jobs that use it hang.", "s",
               f"max(mldebug_filesystem_stuck_seconds{{{HERE}}})", (0.0, GOOD), (10.0, BAD)).links([runbook("MldebugMountStuck")]),
        number("Fullest", "Used share of the fullest filesystem that jobs use, of what can really be used.", "percentunit",
               f"max(mldebug_filesystem_used_ratio{{{HERE}}})", (0.0, GOOD), (0.85, ODD), (0.95, BAD))
        .links([runbook("MldebugStorageFillsUp")]),
        number("Collectives that got slower", "Operations and sizes whose last three probes are all slower than their own history allows.", "none",
               f"count(mldebug_probe_shifted{{{HERE}}} == 1) or vector(0)", (0.0, GOOD), (1.0, ODD)).links([page("Probes", "probes")]),
        number("Last probe", "Since the newest `mldebug probe collectives` on the chosen nodes.", "s",
               f"time() - max(mldebug_probe_last_run_timestamp_seconds{{{HERE}}})"),
    )  # fmt: skip


def _room() -> tuple[Panel, ...]:
    quota = f"mldebug_filesystem_quota_used_ratio{{{HERE}}}"
    return (
        lines("Filesystems", "Used share of what can be used.", "percentunit", (f"mldebug_filesystem_used_ratio{{{HERE}}}", MOUNT), ceiling=1)
        .links([page("Storage", "storage")]),
        lines("Time until full", "As they grow now, saves counted; a filesystem that does not grow has no line.", "s",
              (f"mldebug_filesystem_full_seconds{{{HERE}}}", MOUNT)).links([runbook("MldebugFilesystemFullSoon")]),
        lines("Quotas", "Those that the site's own tool tells, and those that the kernel keeps for users of ranks.", "percentunit",
              (f"mldebug_quota_used_ratio{{{HERE}}}", "{{instance}} {{quota}}"), (quota, f"{MOUNT} {{{{kind}}}} {{{{id}}}}"), ceiling=1)
        .links([page("Quotas", "storage")]),
        lines("Directories", "Allocated bytes of the directories in `trees: {paths: …}`.", "bytes",
              (f"mldebug_tree_bytes{{{HERE}}}", "{{instance}} {{path}}")).links([page("Sizes of directories", "storage-trees")]),
    )  # fmt: skip


def _writes() -> tuple[Panel, ...]:
    written = f"sum by (run, rank) (rate(mldebug_rank_written_bytes_total{{{HERE}}}{RATE}))"
    return (
        lines("No answer", "How long a call has hung, by filesystem; 0 where it answers.", "s",
              (f"mldebug_filesystem_stuck_seconds{{{HERE}}}", MOUNT)).links([runbook("MldebugMountStuck")]),
        lines("Test writes", "How long 64 KiB took in the folders of `storage: {canary: …}`. `df` may be content while this is not.", "s",
              (f"mldebug_filesystem_canary_seconds{{{HERE}}}", "{{instance}} {{path}}")).links([runbook("MldebugTestWriteFails")]),
        lines("Who writes", "The ten ranks that write most: look here when a disk fills up.", "Bps",
              (f"topk(10, {written})", "{{run}} rank {{rank}}")),
        lines("Lost if it ends now", "Work since the last complete checkpoint was begun: a saw whose teeth are the saves. One that only rises does not save.",
              "s", (f"mldebug_checkpoint_work_lost_seconds{{{HERE}}}", SAVE)).links([runbook("MldebugCheckpointLate")]),
    )  # fmt: skip


def _saves() -> tuple[Panel, ...]:
    return (
        stacked("Checkpoints by state", "Incomplete ones are of saves that died: they can be removed, and loading them fails.", "none",
                (f"sum by (state) (mldebug_checkpoint_saves{{{HERE}}})", "{{state}}")).links([page("Checkpoints", "checkpoints")]),
        lines("Throughput of saves", "Of the last complete checkpoint of each place: a fall is storage that somebody else uses.", "Bps",
              (f"mldebug_checkpoint_save_bytes_per_second{{{HERE}}}", SAVE)),
    )  # fmt: skip


def _probes() -> tuple[Panel, ...]:
    return (
        lines("Bus bandwidth of collectives", "The best size of the last probe of each. Hold it against earlier ones of the same node.", "Bps",
              (f"max by (instance, op) (mldebug_probe_busbw_bytes_per_second{{{HERE}}})", "{{instance}} {{op}}"))
        .links([page("Probes", "probes")]),
        lines("Sizes that got slower", "Of each operation. One operation: a setting; all operations on one node: a link of that node.", "none",
              (f"sum by (instance, op) (mldebug_probe_shifted{{{HERE}}})", "{{instance}} {{op}}")).links([page("Probes", "probes")]),
    )  # fmt: skip
