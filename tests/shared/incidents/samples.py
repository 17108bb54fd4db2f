"""Whole judgements built by hand: what the report, the archive and the text are tested with."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Culprit,
    Diagnosis,
    Frame,
    Gap,
    Group,
    Job,
    Judgement,
    LogTail,
    LostRank,
    Movement,
    NodeCapture,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    Remark,
    Role,
    ThreadStack,
    ThreadState,
    TraceTail,
    TreeNode,
    Verdict,
)
from mldebug.core.ranksets import fold_ranks
from mldebug.core.report_model import Report, Stall, TimelineEvent
from mldebug.incidents.report.build import build_report

TAKEN_AT = 1_795_240_241.25  # 2026-11-21T05:50:41Z
SUSPECT_FIRST = (Role.EXITED, Role.MISSING, Role.INERT, Role.BUSY, Role.UNCLEAR, Role.WAITING)
HOSTILE = (
    "<script>alert(1)</script></script><!--\x1b[31m[bold red]\u202egnp.exe\x07\n&lt;'\"`{{7*7}}"
)


class Sample(NamedTuple):
    """What `build_report` takes: the judgement and the captures it rests on."""

    judgement: Judgement
    captures: tuple[NodeCapture, ...]


class Act(NamedTuple):
    """What one rank does in a sample."""

    is_: Classification
    frames: tuple[Frame, ...]
    wchan: str = "futex_do_wait"
    cpu: float = 0.0
    state: str = "S"


def frame(label: str, line: int = 0, native: bool = False) -> Frame:
    """Frame from `function file`, as in `frame("main train.py", 45)`."""
    function, file = label.rsplit(" ", 1)
    return Frame(function=function, file=file, line=line, native=native)


C10D = "torch/distributed/distributed_c10d.py"
LAUNCH = (frame("main train.py", 45), frame("<module> train.py", 61))
WAIT_STACK = (
    frame(f"all_reduce {C10D}", 3013),
    frame("wrapper torch/distributed/c10d_logger.py", 83),
    frame("train_step train.py", 31),
    *LAUNCH,
)
SLEEP_STACK = (frame("slow_data_loader train.py", 7), frame("train_step train.py", 27), *LAUNCH)

WAIT = Act(
    Classification(
        name="collective",
        role=Role.WAITING,
        doing="waits in all_reduce (train.py:31)",
        operation="all_reduce",
        site="train_step (train.py:31)",
        why=("its innermost frame is all_reduce in torch.distributed",),
    ),
    WAIT_STACK,
)
SLEEP = Act(
    Classification(
        name="sleep",
        role=Role.INERT,
        doing="sleeps in slow_data_loader (train.py:7)",
        site="slow_data_loader (train.py:7)",
        direct=True,
        why=("its main thread is in hrtimer_nanosleep", "no CPU time in 2.1 s"),
    ),
    SLEEP_STACK,
    wchan="hrtimer_nanosleep",
)


def sleeping() -> Sample:
    """Eight ranks: rank 3 sleeps in its data loader, seven wait in all_reduce."""
    diagnosis = Diagnosis(
        verdict=Verdict.RANK_WAITING,
        culprits=(rank_culprit(3, "it sleeps in slow_data_loader (train.py:7)"),),
        confidence=Confidence.HIGH,
        summary="rank 3 (pid 41003 on gpu-17) sleeps in slow_data_loader (train.py:7); "
        "ranks 0-2,4-7 wait for it in all_reduce.",
        evidence=(
            "rank 3: the kernel holds its main thread in hrtimer_nanosleep.",
            "rank 3: the same stack in 8 of 8 samples over 2.1 s, 0 % CPU.",
            "ranks 0-2,4-7: main thread in all_reduce (torch/distributed/distributed_c10d.py:3013).",
        ),
        next_steps=("sed -n '1,12p' /home/ada/train.py",),
    )
    return sample(diagnosis, 8, lambda rank: SLEEP if rank == 3 else WAIT, gaps=(PTRACE_GAP,))


def traced() -> Sample:
    """The same, in a job that was started with its calls traced."""
    made = sleeping()
    (capture,) = made.captures
    by_name = {one.identity.rank: _tail(one.identity.rank) for one in capture.ranks}
    ranks = tuple(replace(one, trace=by_name[one.identity.rank]) for one in capture.ranks)
    judged = tuple(
        replace(one, capture=replace(one.capture, trace=by_name[one.rank])) if one.capture else one
        for one in made.judgement.ranks
    )
    return Sample(replace(made.judgement, ranks=judged), (replace(capture, ranks=ranks),))


def _tail(rank: int) -> TraceTail:
    lines = [
        f"--- thread {41000 + rank} (MainThread), step 1,201 ---",
        "        train:40 train_step",
        "0:00:00.000 train.py:    41:     batch = next(batches)",
    ]
    if rank == 3:
        lines += [
            "        train:5 slow_data_loader",
            "0:00:00.001 train.py:     7:     time.sleep(3600)",
        ]
        return TraceTail(
            lines=tuple(lines), last="line 7 of train:5 slow_data_loader", age=61.2, step=1201
        )
    lines += [
        "        <- train:5 slow_data_loader",
        "0:00:00.012 train.py:    44:     dist.all_reduce(loss)",
    ]
    return TraceTail(
        lines=tuple(lines), last="line 44 of train:40 train_step", age=60.0 + rank / 10, step=1201
    )


PTRACE_GAP = Gap(
    what="native stack",
    reason="the kernel lets only root read it (ptrace_scope is 1)",
    rank=3,
    pid=41003,
    way_out="run as root, or: sysctl kernel.yama.ptrace_scope=0",
)

MEGATRON = (frame("pretrain megatron/training.py", 187), frame("<module> pretrain_gpt.py", 239))
BLOOM_SIX = Act(
    Classification(
        name="device_sync",
        role=Role.WAITING,
        doing="waits for the GPU in train (megatron/training.py:915)",
        operation="all_reduce",
        site="train (megatron/training.py:915)",
    ),
    (frame("train megatron/training.py", 915), *MEGATRON),
    wchan="",
    cpu=1.0,
    state="R",
)
BLOOM_TWO = Act(
    Classification(
        name="collective",
        role=Role.WAITING,
        doing="waits in broadcast (deepspeed/runtime/pipe/engine.py:540)",
        operation="broadcast",
        site="_aggregate_total_loss (deepspeed/runtime/pipe/engine.py:540)",
    ),
    (
        frame(f"broadcast {C10D}", 1191),
        frame("_aggregate_total_loss deepspeed/runtime/pipe/engine.py", 540),
        frame("train_batch deepspeed/runtime/pipe/engine.py", 330),
        frame("train_step megatron/training.py", 436),
        frame("train megatron/training.py", 851),
        *MEGATRON,
    ),
)


def mismatch() -> Sample:
    """The published case: six ranks left the step, two still broadcast in it."""
    pair = tuple(rank_culprit(rank, "it still waits in broadcast") for rank in (6, 7))
    diagnosis = Diagnosis(
        verdict=Verdict.COLLECTIVE_MISMATCH,
        culprits=pair,
        confidence=Confidence.MEDIUM,
        summary="ranks 6-7 wait in broadcast under _aggregate_total_loss while ranks 0-5 have left "
        "the step and wait in train (megatron/training.py:915): they are in different collectives.",
        evidence=("6 of 8 ranks stand at megatron/training.py:915.", "2 of 8 stand in broadcast."),
        next_steps=("rerun with TORCH_DISTRIBUTED_DEBUG=DETAIL",),
    )
    return sample(diagnosis, 8, lambda rank: BLOOM_TWO if rank > 5 else BLOOM_SIX)


def huge(world: int = 8192, culprit: int = 4711) -> Sample:
    """As many ranks as a report must stay readable for, eight to a node; one sleeps."""
    diagnosis = Diagnosis(
        verdict=Verdict.RANK_WAITING,
        culprits=(rank_culprit(culprit, "it sleeps in slow_data_loader (train.py:7)"),),
        confidence=Confidence.HIGH,
        summary=f"rank {culprit} (pid {41000 + culprit} on {node_of(culprit, 8)}) sleeps in "
        f"slow_data_loader (train.py:7); {world - 1} ranks wait for it in all_reduce.",
        evidence=("the kernel holds its main thread in hrtimer_nanosleep.",),
        next_steps=(f"py-spy dump --nonblocking --pid {41000 + culprit}",),
    )
    return sample(diagnosis, world, lambda rank: SLEEP if rank == culprit else WAIT, per_node=8)


def scattered(world: int = 8192) -> Sample:
    """The worst case for size: many stacks, no two neighbours alike, nobody named."""

    def act(rank: int) -> Act:
        frames = (frame(f"work_{rank % 97} train.py", 100 + rank % 97), *LAUNCH)
        role = tuple(Role)[rank % 6]
        doing = f"works in work_{rank % 97} (train.py:{100 + rank % 97})"
        is_ = Classification(name=f"class_{rank % 11}", role=role, doing=doing)
        return Act(is_, frames, cpu=(rank % 100) / 100)

    return sample(NOBODY, world, act, per_node=8)


NOBODY = Diagnosis(
    verdict=Verdict.UNKNOWN,
    culprits=(),
    confidence=Confidence.LOW,
    summary="all ranks wait at the same line; the stacks alone do not tell who is behind.",
    evidence=("all ranks: all_reduce (train.py:31).",),
    next_steps=("start the job with: mldebug run -- torchrun …",),
)


def unknown() -> Sample:
    """All wait at the same line: nobody is named."""
    return sample(NOBODY, 4, lambda rank: WAIT)


def lost() -> Sample:
    """Rank 2 is gone and left no process: its pid is null."""
    culprit = Culprit(kind="rank", rank=2, node="gpu-17", pid=None, reason="it has no process")
    diagnosis = Diagnosis(
        verdict=Verdict.RANK_EXITED,
        culprits=(culprit,),
        confidence=Confidence.HIGH,
        summary="rank 2 on gpu-17 is gone (exit unknown); ranks 0-1,3 wait for it in all_reduce.",
        evidence=("no process has RANK=2 in this job.",),
        next_steps=("dmesg -T | grep -i 'killed process'",),
    )
    base = sample(diagnosis, 4, lambda rank: WAIT, lost=(LostRank(rank=2),))
    gone = Classification(name="exited", role=Role.EXITED, doing="is gone: exit unknown")
    ranks = [one for one in base.judgement.ranks if one.rank != 2]
    ranks.insert(2, ClassifiedRank(rank=2, node="gpu-17", pid=None, is_=gone))
    capture = base.captures[0]
    alive = tuple(one for one in capture.ranks if one.identity.rank != 2)
    identities = tuple(one.identity for one in alive)
    node = replace(capture, ranks=alive, job=replace(capture.job, ranks=identities))
    return Sample(judge(diagnosis, ranks), (node,))


def hostile() -> Sample:
    """A job that puts markup, terminal escapes, bidi overrides and 10 kB names everywhere."""
    evil = HOSTILE + "A" * 10_000
    frames = (Frame(function=evil, file=HOSTILE, line=3), frame(f"{HOSTILE} x.py", 1))
    is_ = Classification(
        name=HOSTILE, role=Role.INERT, doing=f"sleeps in {evil}", operation=HOSTILE
    )
    diagnosis = Diagnosis(
        verdict=Verdict.RANK_WAITING,
        culprits=(Culprit(kind="rank", rank=1, node=HOSTILE, pid=41001, reason=evil),),
        confidence=Confidence.HIGH,
        summary=f"rank 1 sleeps in {HOSTILE}; ranks 0,2-3 wait.",
        evidence=(evil, HOSTILE),
        next_steps=(f"echo {HOSTILE}",),
    )
    gap = Gap(what=HOSTILE, reason=evil, rank=1, way_out=HOSTILE)
    return sample(
        diagnosis,
        4,
        lambda rank: Act(is_, frames, wchan=HOSTILE) if rank == 1 else WAIT,
        gaps=(gap,),
        node=HOSTILE,
        name=evil,
        remark=HOSTILE,
        log=(HOSTILE, evil, "\x9b2J\x1b]0;owned\x07 \ud800 \u2028 שלום"),
    )


ALL: dict[str, Callable[[], Sample]] = {
    "sleeping": sleeping,
    "mismatch": mismatch,
    "hostile": hostile,
    "unknown": unknown,
    "lost": lost,
    "traced": traced,
}


def report(made: Sample, *, timeout: float | None = 60.0) -> Report:
    """Build the report of a sample, with the same times in every run."""
    moments = ("last step 1200 finished", "no progress for 30 s", "capture taken")
    return build_report(
        made.judgement,
        made.captures,
        kind="stall" if timeout else "manual",
        trigger="stall" if timeout else "manual",
        stalled_since=TAKEN_AT - 60 if timeout else None,
        detected_at=TAKEN_AT,
        reported_at=TAKEN_AT + 0.8,
        stall=Stall(timeout_seconds=timeout, why="five times the 99th percentile of its step gaps"),
        timeline=[
            TimelineEvent(at=f"2026-11-21T05:50:{10 + 15 * n:02d}Z", what=what)
            for n, what in enumerate(moments)
        ],
        versions={"mldebug": "0.1.0", "python": "3.11.2", "py-spy": "0.4.2"},
    )


def sample(
    diagnosis: Diagnosis,
    world: int,
    act: Callable[[int], Act],
    *,
    per_node: int = 0,
    gaps: tuple[Gap, ...] = (),
    lost: tuple[LostRank, ...] = (),
    node: str = "gpu-17",
    name: str = "train.py",
    remark: str = "",
    log: tuple[str, ...] = ("step 1199 loss 2.31 tok/s 41200", "step 1200 loss 2.30 tok/s 41185"),
) -> Sample:
    """Captures of `world` ranks that act as told, and the judgement over them."""
    captured = [
        _rank(rank, world, per_node or world, node, act(rank), log) for rank in range(world)
    ]
    classified = [
        ClassifiedRank(
            rank=one.identity.rank,
            node=one.identity.node,
            pid=one.identity.pid,
            is_=act(one.identity.rank).is_,
            capture=one,
        )
        for one in captured
    ]
    nodes = dict.fromkeys(one.identity.node for one in captured)
    captures = tuple(
        _node(where, list(mine), nodes, world, gaps, lost, name, remark)
        for where, mine in _by_node(captured).items()
    )
    return Sample(judge(diagnosis, classified), captures)


def judge(diagnosis: Diagnosis, ranks: Sequence[ClassifiedRank]) -> Judgement:
    """Group and merge by equal main stacks, suspects first, then by size."""
    members: dict[tuple[str, tuple[str, ...]], list[ClassifiedRank]] = {}
    for one in ranks:
        members.setdefault((one.is_.doing, stack_of(one)), []).append(one)
    ordered = sorted(members.items(), key=lambda item: (_order(item[1][0]), -len(item[1])))
    groups = tuple(_group(stack, mine) for (_, stack), mine in ordered)
    group_of = {one.rank: index for index, (_, mine) in enumerate(ordered) for one in mine}
    stacks = [(stack_of(one)[::-1], one.rank) for one in ranks if one.capture]
    return Judgement(
        diagnosis=diagnosis, ranks=tuple(ranks), groups=groups, group_of=group_of, tree=tree(stacks)
    )


def tree(stacks: list[tuple[tuple[str, ...], int]]) -> tuple[TreeNode, ...]:
    """Prefix tree of (labels outermost first, rank)."""
    below: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for labels, rank in stacks:
        if labels:
            below.setdefault(labels[0], []).append((labels[1:], rank))
    nodes = [
        TreeNode(
            frame=label,
            ranks=fold_ranks(rank for _, rank in rest),
            count=len(rest),
            children=tree(rest),
        )
        for label, rest in below.items()
    ]
    return tuple(sorted(nodes, key=lambda one: (-one.count, one.frame)))


def stack_of(one: ClassifiedRank) -> tuple[str, ...]:
    """Labels of the main thread, innermost first."""
    stacks = one.capture.process.stacks if one.capture else ()
    return tuple(each.label for each in stacks[0].frames) if stacks else ()


def rank_culprit(rank: int, reason: str, node: str = "") -> Culprit:
    """Culprit of kind rank with the pid that samples give it."""
    where = node or ("gpu-17" if rank < 8 else node_of(rank, 8))
    return Culprit(kind="rank", rank=rank, node=where, pid=41000 + rank, reason=reason)


def node_of(rank: int, per_node: int) -> str:
    """Name of the node a rank of a many-node sample lives on."""
    return f"gpu-{rank // per_node:04d}"


def _order(one: ClassifiedRank) -> int:
    return SUSPECT_FIRST.index(one.is_.role)


def _group(stack: tuple[str, ...], mine: list[ClassifiedRank]) -> Group:
    is_ = mine[0].is_
    return Group(
        ranks=fold_ranks(one.rank for one in mine),
        count=len(mine),
        role=is_.role,
        class_=is_.name,
        doing=is_.doing,
        frames=stack,
    )


def _by_node(captured: Iterable[RankCapture]) -> dict[str, list[RankCapture]]:
    nodes: dict[str, list[RankCapture]] = {}
    for one in captured:
        nodes.setdefault(one.identity.node, []).append(one)
    return nodes


def _node(
    where: str,
    mine: list[RankCapture],
    nodes: Iterable[str],
    world: int,
    gaps: tuple[Gap, ...],
    lost: tuple[LostRank, ...],
    name: str,
    remark: str,
) -> NodeCapture:
    job = Job(
        id="3fa9c1",
        name=name,
        launcher="torchrun",
        world_size=world,
        user="ada",
        uid=1000,
        started_at=TAKEN_AT - 3600,
        nodes=tuple(nodes),
        ranks=tuple(one.identity for one in mine),
        lost=lost,
    )
    remarks = (Remark(kind="odd", message=remark),) if remark else ()
    return NodeCapture(
        node=where,
        taken_at=TAKEN_AT,
        duration_seconds=0.42,
        job=job,
        ranks=tuple(mine),
        gaps=gaps,
        remarks=remarks,
    )


def _rank(
    rank: int, world: int, per_node: int, node: str, act: Act, log: tuple[str, ...]
) -> RankCapture:
    pid = 41000 + rank
    where = node_of(rank, per_node) if per_node < world else node
    identity = RankIdentity(rank=rank, world_size=world, pid=pid, node=where, user="ada")
    threads = (
        ThreadState(tid=pid, name="python", state=act.state, wchan=act.wchan),
        ThreadState(tid=pid + 100_000, name="pt_gloo_runloop", state="S", wchan="ep_poll"),
    )
    helper = (frame("wait threading.py", 331), frame("run tqdm/_monitor.py", 60))
    process = ProcessCapture(
        pid=pid,
        name="python",
        state=ProcessState(pid=pid, name="python", state=act.state, threads=threads),
        stacks=(
            ThreadStack(tid=pid, name="MainThread", active=act.state == "R", frames=act.frames),
            ThreadStack(tid=pid + 100_001, name="tqdm_monitor", frames=helper),
        ),
        movement=Movement(samples=8, span_seconds=2.1, same_frames=True, cpu_ratio=act.cpu),
    )
    tail = LogTail(path=f"/tmp/rank{rank}.log", lines=log)
    return RankCapture(identity=identity, process=process, log=tail)
