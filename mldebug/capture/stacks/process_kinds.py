"""Which Python processes of a node are ranks, and which launch ranks, load data for them, or have nothing to do with them.

People dump all Python processes of a node (`pgrep python | xargs -n 1 py-spy dump --pid`). The frames of its main thread, and
then its command line, show what a process is. Sources: torch 1.13 to 2.15, accelerate, DeepSpeed, Ray, wandb.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from mldebug.capture.stacks.process_text import ProcessText, local_rank
from mldebug.core.model import Frame


class ProcessKind(StrEnum):
    """The role of a process in a job: rank, worker, launcher, and so on."""

    RANK = "rank"
    LAUNCHER = "launcher"
    WORKER = "worker"  # a DataLoader's, a pool's: of one rank
    HELPER = "helper"  # a server or agent beside the ranks, or of another program


class KindSign(NamedTuple):
    """A function in a process's main thread that shows what kind of process it is (DataLoader worker, compiler, launcher)."""

    kind: ProcessKind
    file: re.Pattern[str]
    function: re.Pattern[str]


def _sign(kind: ProcessKind, file: str, function: str = r".*") -> KindSign:
    return KindSign(kind, re.compile(rf"(?:.*/)?(?:{file})"), re.compile(function))


# Beside its ranks, who gives them their work (verl's single controller)
DRIVERS = (
    _sign(ProcessKind.HELPER, r"verl/single_controller/ray/base\.py", r"(?:.*\.)?(?:__call__|execute_all(?:_sync)?)"),
    _sign(ProcessKind.HELPER, r"verl/trainer/(?:ppo/ray_trainer|main_ppo)\.py", r"(?:.*\.)?(?:fit|run)"),
)  # fmt: skip

L, W, H = ProcessKind.LAUNCHER, ProcessKind.WORKER, ProcessKind.HELPER

FRAMES: tuple[KindSign, ...] = (
    _sign(W, r"torch/utils/data/_utils/worker\.py|torchdata/stateful_dataloader/worker\.py", r"_worker_loop"),
    _sign(W, r"concurrent/futures/process\.py", r"_process_worker"),
    _sign(W, r"(?:multiprocessing|multiprocess|billiard)/pool\.py", r"worker"),
    _sign(W, r"(?:multiprocessing|multiprocess|loky(?:/backend)?)/(?:resource_tracker|forkserver|semaphore_tracker)\.py", r"main"),
    _sign(W, r"(?:multiprocessing|multiprocess)/managers\.py", r".*(?:serve_forever|_run_server)"),
    _sign(W, r"torch/_inductor/compile_worker/__main__\.py"),
    _sign(W, r"torch/_inductor/compile_worker/subproc_pool\.py", r".*(?:SubprocMain\.)?main"),
    _sign(L, r"torch/distributed/elastic/agent/server/\w+\.py"),
    _sign(L, r"torch/distributed/launcher/api\.py", r"launch_agent|.*__call__"),
    _sign(L, r"torch/distributed/(?:run|launch)\.py"),
    _sign(L, r"torch/multiprocessing/spawn\.py", r"(?:.*\.)?join|start_processes|spawn"),
    _sign(L, r"deepspeed/launcher/(?:launch|runner)\.py"),
    _sign(L, r"accelerate/commands/launch\.py"),
    _sign(L, r"horovod/runner/.*"),
    _sign(L, r"colossalai/cli/.*"),
    _sign(L, r"composer/cli/launcher\.py"),
    _sign(L, r"(?:distributed/cli/dask_worker|dask_cuda/cli)\.py"),  # a nanny: its worker is its child
    _sign(H, r"distributed/cli/dask_scheduler\.py"),
    _sign(L, r"lightning/fabric/cli\.py|lightning_fabric/cli\.py"),
    _sign(L, r"dlrover/(?:trainer/torch|python/elastic_agent)/.*"),
    _sign(H, r"wandb/sdk/(?:service|internal)/.*", r"(?:.*\.)?(?:serve|main|start|loop|join)"),
    _sign(H, r"ray/(?:dashboard|autoscaler)/.*|ray/_private/log_monitor\.py"),
    _sign(H, r"tensorboard/(?:main|program)\.py"),
    _sign(H, r"vllm/v1/engine/core\.py", r"(?:.*\.)?_process_input_queue"),
    _sign(H, r"vllm/v1/executor/(?:multiproc|ray)_executor\w*\.py", r"(?:.*\.)?(?:get_response|_wait_for_response|collective_rpc)"),
)  # fmt: skip

COMMANDS: tuple[tuple[ProcessKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (L, r"(?:.*[/ ])?(?:torchrun|deepspeed|horovodrun|mpirun|mpiexec|srun|colossalai|composer|ft_launcher|dlrover-run)(?: .*)?"),
        (L, r".* -m (?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+)\b.*"),
        (L, r"(?:.*[/ ])?accelerate(?:-| )launch\b.*"),
        (W, r".*from multiprocessing\.(?:resource_tracker|forkserver|semaphore_tracker) import main.*"),
        (W, r".*torch/_inductor/compile_worker/__main__\.py.*"),
        (H, r".*(?:wandb-core|wandb-service|wandb/sdk/service|ray/dashboard|ray/_private/log_monitor|ray/autoscaler|raylet).*"),
        (H, r"(?:.*[/ ])?(?:tensorboard|jupyter(?:-lab|-notebook|hub)?|mldebug|supervisord|ray start|nvitop|gpustat|glances|ansible\S*|pdsh)(?: .*)?"),
        (H, r"VLLM::(?:APIServer|DPCoordinator).*|sglang::(?:detokenizer|data_parallel_controller|tokenizer).*"),
        (H, r".*(?:networkd-dispatcher|unattended-upgrade|fail2ban|firewalld|/tuned|cloud-init|dnf|yum|apt-get).*"),
    )
)  # fmt: skip

_CHILD = re.compile(r"(?:.*/)?(?:multiprocessing|multiprocess)/process\.py")
_TRAINING = re.compile(
    r"(?:.*/)?(?:torch/(?:distributed/(?!elastic|launcher|run\.py|launch\.py)|nn/|autograd/|cuda/|optim/|utils/data/dataloader\.py)|deepspeed/(?!launcher)|megatron/"
    r"|distributed/nanny\.py|accelerate/(?!commands)|lightning|pytorch_lightning|transformers/|jax/|jaxlib/|horovod/(?!runner)|composer/(?!cli)).*"
)
_DASK_TASKS = re.compile(r"Dask-\w{1,20}-Threads")  # of a worker of Dask, with a nanny or without
_WAITS_FOR_CHILD = re.compile(
    r"(?:.*/)?(?:multiprocessing|multiprocess)/(?:popen_\w+|process|connection)\.py|subprocess\.py|(?:.*/)?torch/multiprocessing/spawn\.py"
)


class SortedProcesses(NamedTuple):
    """All processes by what they are. `of`: the index of a worker -> the index of the rank that it works for, where that is
    known.
    """

    kinds: tuple[ProcessKind, ...]
    of: dict[int, int]


def sort_processes(found: Sequence[ProcessText], groups: Sequence[object]) -> SortedProcesses:
    """Sort the processes into ranks, workers, launchers and others. `groups`: where each was found; a worker found with exactly
    one rank belongs to it.
    """
    kinds = [kind_of(one) for one in found]
    children = [
        index
        for index, one in enumerate(found)
        if kinds[index] is ProcessKind.RANK and is_child(one)
    ]
    _sort_children(found, groups, kinds, children)
    _sort_strangers(found, kinds)
    _sort_drivers(found, kinds)
    return SortedProcesses(tuple(kinds), dict(_owners(found, groups, kinds)))


def node_parts(processes: Sequence[ProcessText]) -> list[int]:
    """For each process of one text the index of its node. It is above 0 only where the text holds dumps of several nodes one
    after the other.

    A node begins (or ends) with its launcher; without launchers a new node begins where a local rank comes again.
    """
    launchers = [kind_of(one) is ProcessKind.LAUNCHER for one in processes]
    begins = [
        now and not before for before, now in zip([False, *launchers], launchers, strict=False)
    ]
    parts = [0] * len(processes)
    if sum(begins) > 1 and (launchers[0] or launchers[-1]):
        part = -1 if launchers[0] else 0
        for index, begin in enumerate(begins):
            part += begin and launchers[0]
            parts[index] = part
            part += begin and not launchers[0]
    elif not any(launchers):
        parts = _by_local_ranks(processes)
    return [0] * len(parts) if _dumped_in_two_ways(processes, parts) else parts


def _by_local_ranks(processes: Sequence[ProcessText]) -> list[int]:
    """A child has the command line of its parent, and with it its local rank: it begins no node."""
    part, here, parts = 0, dict[int, int](), list[int]()
    pids = {one.pid for one in processes if one.pid}
    for one in processes:
        rank = -1 if one.parent in pids else local_rank(one)
        if rank >= 0 and here.get(rank, one.pid) != one.pid:
            part, here = part + 1, {}
        if rank >= 0:
            here[rank] = one.pid
        parts.append(part)
    return parts


def _dumped_in_two_ways(processes: Sequence[ProcessText], parts: Sequence[int]) -> bool:
    """Are the parts the same processes, once with native frames and once without?"""
    ways = {(part, bool(one.native)) for part, one in zip(parts, processes, strict=True)}
    pids = [
        {one.pid for one, p in zip(processes, parts, strict=True) if p == part}
        for part in set(parts)
    ]
    return (
        len(pids) > 1
        and all(some == pids[0] for some in pids)
        and len(ways) == len(pids)
        and len({way for _, way in ways}) > 1
    )


def kind_of(process: ProcessText) -> ProcessKind:
    """The kind of a process, by its own frames and command line; RANK where no sign of another kind is found."""
    if any(_DASK_TASKS.match(one.name) for one in process.stacks):
        return ProcessKind.RANK
    frames = own_frames(process)
    if (sign := _shown_by(FRAMES, frames)) is not None:
        return sign.kind
    if any(_TRAINING.fullmatch(frame.file) for frame in frames):
        return ProcessKind.RANK
    command = _program(process.command)
    return next(
        (kind for kind, pattern in COMMANDS if pattern.fullmatch(command)), ProcessKind.RANK
    )


def _shown_by(signs: Sequence[KindSign], frames: Iterable[Frame]) -> KindSign | None:
    """The first sign that a frame shows, from the innermost frame outwards."""
    pairs = ((sign, frame) for frame in frames for sign in signs)
    return next(
        (s for s, f in pairs if s.file.fullmatch(f.file) and s.function.fullmatch(f.function)), None
    )


def _program(command: str) -> str:
    """The command line up to the script: what follows are the script's own arguments."""
    words = command.split(" ")
    for index, word in enumerate(words):
        if index and word.endswith(".py") and not word.startswith("-"):
            return " ".join(words[: index + 1])
    return command[:2000]


def own_frames(process: ProcessText) -> tuple[Frame, ...]:
    """The frames of the main thread. Of a forked child the frames that it inherited from its parent are left out."""
    main = process.main
    frames = main.frames if main else ()
    cut = next((i for i, one in enumerate(frames) if _is_start_of_child(one)), len(frames))
    return frames[: cut + 1]


def is_child(process: ProcessText) -> bool:
    """Whether the process was started by Python's multiprocessing."""
    frames = own_frames(process)
    return (
        bool(frames) and _is_start_of_child(frames[-1])
    ) or "--multiprocessing-fork" in process.command


def _is_start_of_child(frame: Frame) -> bool:
    return frame.function.endswith("_bootstrap") and bool(_CHILD.fullmatch(frame.file))


def _trains(process: ProcessText) -> bool:
    every = (*process.stacks, *process.native)
    return any(_TRAINING.fullmatch(frame.file) for one in every for frame in one.frames)


def _sort_children(
    found: Sequence[ProcessText],
    groups: Sequence[object],
    kinds: list[ProcessKind],
    children: Sequence[int],
) -> None:
    """Children of multiprocessing are ranks where they train and their parent only waits for them, else workers."""
    trained = any(_trains(found[index]) for index in children)
    for index, one in enumerate(found):
        waits = _WAITS_FOR_CHILD.fullmatch(next((f.file for f in own_frames(one)), "")) is not None
        alone = kinds[index] is ProcessKind.RANK and index not in children and waits
        mine = [i for i in children if groups[i] == groups[index]]
        if (
            alone
            and trained
            and mine
            and not any(
                _TRAINING.fullmatch(f.file) and "spawn" not in f.file for f in own_frames(one)
            )
        ):
            kinds[index] = ProcessKind.LAUNCHER
    parents = [i for i, kind in enumerate(kinds) if kind is ProcessKind.RANK and i not in children]
    for index in children:
        if not trained or any(groups[i] == groups[index] and _trains(found[i]) for i in parents):
            kinds[index] = ProcessKind.WORKER if parents else ProcessKind.RANK


def _sort_strangers(found: Sequence[ProcessText], kinds: list[ProcessKind]) -> None:
    """Beside several ranks of one script, a program of another script that has no training frame is none of the job."""
    ranks = [index for index, kind in enumerate(kinds) if kind is ProcessKind.RANK]
    scripts = Counter(script(found[index]) for index in ranks)
    common, count = next(iter(scripts.most_common(1)), ("", 0))
    if not common or count < 2 or count <= len(ranks) / 2:
        return
    for index in ranks:
        mine = script(found[index])
        if mine and mine != common and not _trains(found[index]):
            kinds[index] = ProcessKind.HELPER


def _sort_drivers(found: Sequence[ProcessText], kinds: list[ProcessKind]) -> None:
    """Beside ranks, who gives them their work is none of them; alone it is all that is known of the job."""
    ranks = [index for index, kind in enumerate(kinds) if kind is ProcessKind.RANK]
    drivers = [index for index in ranks if _shown_by(DRIVERS, own_frames(found[index]))]
    if len(drivers) < len(ranks):
        for index in drivers:
            kinds[index] = ProcessKind.HELPER


def script(process: ProcessText) -> str:
    """The script or module that the command line runs; "" where it names none."""
    match = re.search(r"(?:^|[\s/])([\w.-]+\.py)\b|\s-m\s+([\w.]+)", process.command)
    return (match[1] or match[2]) if match else ""


def _owners(
    found: Sequence[ProcessText], groups: Sequence[object], kinds: Sequence[ProcessKind]
) -> Iterable[tuple[int, int]]:
    """The rank of each worker: its parent by number, else the only rank of the place where both were found."""
    by_pid = {(groups[i], one.pid): i for i, one in enumerate(found) if one.pid}
    for index, one in enumerate(found):
        if kinds[index] is not ProcessKind.WORKER:
            continue
        parent = by_pid.get((groups[index], one.parent)) if one.parent else None
        for _ in range(8):  # a worker of a worker
            if parent is None or kinds[parent] is not ProcessKind.WORKER:
                break
            parent = by_pid.get((groups[index], found[parent].parent))
        same = [
            i
            for i, kind in enumerate(kinds)
            if kind is ProcessKind.RANK and groups[i] == groups[index]
        ]
        if parent is not None and kinds[parent] is ProcessKind.RANK:
            yield index, parent
        elif not one.parent and len(same) == 1:
            yield index, same[0]
