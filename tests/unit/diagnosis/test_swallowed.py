"""Exceptions that were printed before a rank got stuck, as people's logs have them; the answers were fixed before the product was tried.

Four ranks, of which rank 2 is odd. Where the log tells that rank 2 raised it the sentence quotes it; of other exceptions nothing is said.
"""

from typing import NamedTuple

import msgspec
import pytest

from mldebug.core.model import LogTail, NodeCapture, ProcessCapture, ThreadStack
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import WAITER, capture, process, rank, stack, still

STEPS = tuple(f"step {n} loss 2.5" for n in range(5))
EXIT = ("_shutdown (threading.py:1590)",)
COLLATE = ("wait (threading.py:327)", "collate (train.py:31)", "<module> (train.py:50)")
QUEUE = ("wait (threading.py:327)", "get (queue.py:171)", "next_batch (train.py:12)", "<module> (train.py:50)")  # fmt: skip
LOADER = ("wait (multiprocessing/connection.py:900)", "_try_get_data (torch/utils/data/dataloader.py:1200)",
          "_next_data (torch/utils/data/dataloader.py:1400)", "train (train.py:20)")  # fmt: skip
ASYNC = ("select (selectors.py:468)", "_run_once (asyncio/base_events.py:1898)", "run_forever (asyncio/base_events.py:607)", "main (train.py:80)", "<module> (train.py:90)")  # fmt: skip
WANDB = ("wait (threading.py:327)", "finish (wandb/sdk/wandb_run.py:2300)", "_atexit_cleanup (wandb/sdk/wandb_run.py:2400)")  # fmt: skip
RAY_EXIT = ("wait (threading.py:327)", "shutdown (ray/_private/worker.py:1900)")
BROADCAST = ("broadcast (torch/distributed/distributed_c10d.py:2800)", "wrapper (torch/distributed/c10d_logger.py:83)", "on_exception (hooks.py:40)", "<module> (train.py:50)")  # fmt: skip
JAX_EXIT = ("shutdown (jax/_src/distributed.py:180)", "clean_up (jax/_src/api.py:3000)")


def trace(error: str, *frames: tuple[str, int, str], head: str = "", first: str = "") -> str:
    """A traceback of `<module>` and these frames (file, line, function), behind the text `first` on its first line."""
    places = (("train.py", 50, "<module>"), *frames)
    lines = [
        f'  File "/home/user/{file}", line {line}, in {function}\n    work()'
        for file, line, function in places
    ]
    return "\n".join((*((head,) if head else ()), f"{first}Traceback (most recent call last):", *lines, error))  # fmt: skip


def thread_trace(error: str, thread: str, file: str, line: int, function: str) -> str:
    return "\n".join(
        (
            f"Exception in thread {thread}:",
            "Traceback (most recent call last):",
            '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner',
            "    self.run()",
            f'  File "/venv/lib/python3.11/site-packages/{file}", line {line}, in {function}',
            "    work()",
            error,
        )
    )


class Log(NamedTuple):
    """What the log holds, what rank 2 does, and the words that quote it ("": none).

    `alone`: rank 2 writes its own log. `threads`: the threads that the other ranks have.
    """

    text: str
    odd: ProcessCapture
    quoted: str
    alone: bool = False
    threads: tuple[ThreadStack, ...] = ()
    also: tuple[int, ...] = ()  # ranks that do what rank 2 does
    evidence_only: bool = False  # nobody need be named, but what rank 2 raised is shown
    source: str = "own"


def stuck(*frames: str, others: tuple[ThreadStack, ...] = ()) -> ProcessCapture:
    return process(*frames, move=still(), others=others)


def job(log: Log) -> NodeCapture:
    def one(n: int):
        odd = n == 2 or n in log.also
        what = log.odd if odd else process(*WAITER, move=still(), others=log.threads)
        lines = tuple(log.text.split("\n")) if n == 2 or not log.alone else STEPS
        return msgspec.structs.replace(rank(n, what), log=LogTail(path=f"/logs/{n if log.alone else 'job'}", lines=lines))  # fmt: skip

    return msgspec.structs.replace(capture(*map(one, range(4))), quiet_seconds=60.0)


def named_thread(name: str) -> tuple[ThreadStack, ...]:
    return (stack("get (queue.py:171)", "loop (x.py:1)", name=name, tid=7),)


RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
MARKED = trace("ValueError: bad shard 7", ("train.py", 31, "collate"))
LOGS = {
    "the pin-memory thread died": Log(
        thread_trace(RESET, "Thread-1 (_pin_memory_loop)", "torch/utils/data/_utils/pin_memory.py", 25, "_pin_memory_loop"),
        stuck(*LOADER), f"thread Thread-1 (_pin_memory_loop) of rank 2 died with {RESET}",
        threads=named_thread("Thread-1 (_pin_memory_loop)"), source="pytorch/pytorch#28950",
    ),
    "a thread of PyTorch/XLA's loader": Log(
        thread_trace("RuntimeError: Check failed: status (Aborted: Session ab76 is not found. vs. OK)", "Thread-15", "torch_xla/distributed/parallel_loader.py", 166, "_worker"),
        stuck(*QUEUE), "thread Thread-15 of rank 2 died with RuntimeError: Check failed", threads=named_thread("Thread-15"), source="pytorch/xla#3122",
    ),
    "a task of asyncio": Log(
        "Task exception was never retrieved\nfuture: <Task finished name='Task-7' coro=<worker() done, defined at train.py:40> exception=ValueError('sandbox crashed')>\n"
        + trace("ValueError: sandbox crashed", ("train.py", 44, "worker")),
        stuck(*ASYNC), "rank 2 raised ValueError: sandbox crashed in worker (train.py:44)", alone=True, source="thinking-machines-lab/tinker-cookbook#945",
    ),
    "Ray shuts down": Log(trace("ValueError: bad shard 7", ("train.py", 31, "collate")), stuck(*RAY_EXIT), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31)", alone=True, source="NovaSky-AI/SkyRL#76"),
    "wandb at the exit": Log(
        "\n".join(f"[rank2]:{line}" for line in MARKED.split("\n")), stuck(*WANDB), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31)", source="pytorch/torchtitan#3065",
    ),
    "the feeder of a worker's queue": Log(
        "Traceback (most recent call last):\n  File \"/usr/lib/python3.6/multiprocessing/queues.py\", line 241, in _feed\n    obj = _ForkingPickler.dumps(obj)\n"
        "  File \"/venv/lib/python3.6/site-packages/torch/multiprocessing/reductions.py\", line 315, in reduce_storage\n    metadata = storage._share_filename_()\n"
        "RuntimeError: unable to open shared memory object </torch_34609_1792353697> in read-write mode",
        stuck(*LOADER), "rank 2 raised RuntimeError: unable to open shared memory object", alone=True, source="tianzhi0549/FCOS#97",
    ),
    "a thread that gathers results": Log(
        thread_trace("RuntimeError: One or more background workers are no longer alive.", "Thread-4 (results_loop)", "batchgenerators/dataloading/nondet_multi_threaded_augmenter.py", 125, "results_loop"),
        stuck(*QUEUE), "thread Thread-4 (results_loop) of rank 2 died with RuntimeError: One or more background workers", threads=named_thread("Thread-4 (results_loop)"), source="MIC-DKFZ/nnUNet#1739",
    ),
    "a handler of exceptions broadcasts": Log(
        "\n".join(f"[rank2]: {line}" for line in ("2026-09-18 12:03:11,120 - ERROR - hooks - training failed", *MARKED.split("\n"))),
        stuck(*BROADCAST), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31) at 12:03:11", evidence_only=True, source="Lightning-AI/pytorch-lightning#6430",
    ),
    "a box of rich": Log(
        "╭──────── Traceback (most recent call last) ────────╮\n│ /home/user/train.py:50 in <module>                │\n│                                                   │\n"
        "│ ❱ 50     main()                                   │\n│ /home/user/train.py:31 in collate                 │\n│ ❱ 31     raise KeyError('input_ids')              │\n"
        "╰───────────────────────────────────────────────────╯\nKeyError: 'input_ids'",
        stuck(*COLLATE), "rank 2 raised KeyError: 'input_ids' in collate (train.py:31)", source="Textualize/rich (form)",
    ),
    "loguru": Log(
        "2026-09-18 12:03:11.120 | ERROR    | __main__:train:77 - An error has been caught in function 'train', process 'MainProcess' (4711), thread 'MainThread' (140):\n"
        "Traceback (most recent call last):\n\n  File \"/home/user/train.py\", line 50, in <module>\n    main()\n    └ <function main at 0x7f5a>\n\n"
        "> File \"/home/user/train.py\", line 31, in collate\n    raise KeyError('input_ids')\n\nKeyError: 'input_ids'",
        stuck(*COLLATE), "rank 2 raised KeyError: 'input_ids' in collate (train.py:31) at 12:03:11", source="Megvii-BaseDetection/YOLOX#840 (the habit)",
    ),
    "absl": Log(
        trace("ValueError: bad shard 7", ("train.py", 31, "collate"), head="E0918 12:03:11.123456 140 train.py:77] step failed"),
        stuck(*COLLATE), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31) at 12:03:11", alone=True, source="AI-Hypercomputer/maxtext (form)",
    ),
    "a pod's log": Log(
        "\n".join(f"2026-09-18T12:03:11.120Z [rank2]: {line}" for line in MARKED.split("\n")),
        stuck(*EXIT), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31) at 12:03:11 and waits at its exit since", source="kubectl logs --timestamps",
    ),
    "other threads write on": Log(
        "\n".join((MARKED, *(f"2026-09-18 12:0{n}:00 INFO uploader is alive" for n in range(9)))),
        stuck(*EXIT, others=named_thread("uploader")), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31) and waits at its exit since", alone=True,
    ),
    "a thread dies after it": Log(
        MARKED + "\n" + thread_trace("OSError: queue is closed", "feeder", "feed.py", 9, "feed"),
        stuck(*EXIT), "rank 2 raised ValueError: bad shard 7 in collate (train.py:31) and waits at its exit since", alone=True,
    ),
    "JAX at its exit": Log(
        trace("jax.errors.JaxRuntimeError: INVALID_ARGUMENT: Argument does not match host shape", ("train.py", 31, "step"))
        + "\n--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following exception.",
        stuck(*JAX_EXIT), "rank 2 raised jax.errors.JaxRuntimeError: INVALID_ARGUMENT", alone=True, source="jax-ml/jax (form)",
    ),
    "a group of exceptions": Log(
        "  + Exception Group Traceback (most recent call last):\n  |   File \"/home/user/train.py\", line 50, in <module>\n  |     asyncio.run(main())\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        "    |   File \"/home/user/train.py\", line 31, in collate\n    |     raise KeyError('x')\n    | KeyError: 'x'\n    +------------------------------------",
        stuck(*EXIT), "rank 2 raised ", alone=True, source="Python (form)",
    ),
    "a process of its own": Log(
        trace("OSError: unexpected end of data", ("train.py", 9, "produce"), head="Process producer-1:"),
        stuck(*QUEUE), "OSError: unexpected end of data in produce (train.py:9)", alone=True,
    ),
    # what is not quoted
    "ignored in a destructor": Log(
        trace("AttributeError: 'NoneType' object has no attribute 'close'", ("x.py", 9, "__del__"), head="Exception ignored in: <function Loader.__del__ at 0x7f1a6a663910>"),
        stuck("nap (train.py:9)"), "", alone=True, source="ultralytics/ultralytics#673",
    ),
    "of the logger": Log(trace("UnicodeEncodeError: 'ascii' codec can't encode character", ("logging/__init__.py", 1100, "emit"), head="--- Logging error ---"), stuck("nap (train.py:9)"), "", alone=True, source="Python (form)"),
    "of a lost peer, in a thread": Log(
        thread_trace("RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [10.0.0.3]:4711: Connection reset by peer", "Thread-3 (heartbeat)", "torch/distributed/x.py", 9, "beat"),
        stuck("nap (train.py:9)"), "", threads=named_thread("Thread-3 (heartbeat)"),
    ),
    "two ranks are at their exit": Log(MARKED, stuck(*EXIT), "", also=(3,)),
    "two ranks lack the thread": Log(thread_trace("OSError: gone", "Thread-3", "x.py", 9, "feed"), stuck(*QUEUE), "", also=(1,), threads=named_thread("Thread-3")),
    "it compiled without a graph, and went on": Log("\n".join(("W0918 12:00:00.1 torch/_dynamo/convert_frame.py:1000] WON'T CONVERT forward", trace("torch._dynamo.exc.Unsupported: call_function", ("train.py", 31, "forward")), *STEPS)), stuck("nap (train.py:9)"), "", alone=True, source="pytorch/pytorch (form)"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_what_a_rank_raised_before_it_got_stuck_is_quoted(name: str) -> None:
    log = LOGS[name]
    found = diagnose([job(log)]).diagnosis
    named = [one.rank for one in found.culprits]
    assert set(named) <= {2, *log.also}, found.summary
    if log.quoted and not named:  # its stack may be a victim's: what it raised stands beside it
        assert log.evidence_only
        assert any("bad shard 7" in fact for fact in found.evidence), found.evidence
    elif log.quoted:
        assert named == [2], found.summary
        assert log.quoted in found.summary
    else:
        assert "raised" not in found.summary
        assert "died" not in found.summary
