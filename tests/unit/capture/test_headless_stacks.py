"""Stacks without a heading (`traceback.print_stack`, Ctrl-C) and folded ones of profilers; exceptions of a log are none."""

from pathlib import Path

import pytest

from mldebug.capture.dump_folder import captures_from_dumps
from mldebug.capture.folded_stacks import is_folded, take_folded
from mldebug.capture.stacks.reader import StackText, read_text
from mldebug.core.model import MAIN_THREAD

PRINTED = (
    '  File "/w/train.py", line 90, in <module>\n    main()\n'
    '  File "/w/train.py", line 70, in main\n    dist.barrier()\n    ^^^^^^^^^^^^^^\n'
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4551, in barrier\n    work.wait()\n'
)
RAISED = "Traceback (most recent call last):\n" + PRINTED
FOLDED = (
    "<module> (train.py:90);main (train.py:70);barrier (torch/distributed/distributed_c10d.py:4551)"
)


def only(text: str) -> tuple[str, ...]:
    """The labels of the only thread of the only process, innermost first."""
    (process,) = read_text(text).processes
    (stack,) = process.stacks
    assert stack.name == MAIN_THREAD
    return tuple(frame.label for frame in stack.frames)


PLACES = ("barrier (torch/distributed/distributed_c10d.py:4551)", "main (train.py:70)", "<module> (train.py:90)")  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        PRINTED,
        f"step 12 loss 3.1\n{PRINTED}\nstep 13",
        f"{RAISED}KeyboardInterrupt\n",
        f"^C{RAISED}KeyboardInterrupt: \n",
        "".join(f"[rank3]: {line}\n" for line in PRINTED.splitlines()),
    ],
)
def test_a_stack_without_heading_is_read(text: str) -> None:
    assert only(text) == PLACES


def test_of_a_rank_the_last_of_several_counts(tmp_path: Path) -> None:
    later = PRINTED.replace("line 70", "line 75")
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(f"{PRINTED}\n12:01 still there\n{later}")
    (capture,) = captures_from_dumps(tmp_path)
    assert [one.identity.rank for one in capture.ranks] == [0, 1]
    assert [one.process.stacks[0].frames[1].line for one in capture.ranks] == [75, 75]


@pytest.mark.parametrize(
    "text",
    [
        f"{RAISED}ValueError: no such shard\n",
        f"{RAISED}torch.distributed.DistBackendError: NCCL error\n",
        f"{PRINTED}RuntimeError: of a log that was cut\n",
        RAISED,
        '  File "/w/train.py", line 90, in <module>\n    warnings.warn("x")\n',
    ],
)
def test_where_an_exception_was_raised_is_no_place_of_a_rank(text: str) -> None:
    assert read_text(text).processes == ()


@pytest.mark.parametrize(
    ("line", "thread"),
    [
        (f"{FOLDED} 500", ""),
        (f"thread (0x7F01): MainThread;{FOLDED} 500", MAIN_THREAD),
        (f"MainThread;{FOLDED} 500", MAIN_THREAD),
        ("P41;T0:41;/w/train.py:<module>:90;/w/train.py:main:70;/v/site-packages/torch/distributed/distributed_c10d.py:barrier:4551 30", ""),
        (f'process 41:"python train.py";{FOLDED} 7', ""),
    ],
)  # fmt: skip
def test_a_folded_stack_is_read(line: str, thread: str) -> None:
    assert is_folded(line)
    (stack,) = take_folded([line]).stacks
    assert tuple(frame.label for frame in stack.frames) == PLACES
    assert stack.name == thread
    assert only(line) == PLACES


def test_of_each_thread_the_stack_with_most_samples_counts() -> None:
    other = "_bootstrap (threading.py:1030);run (tqdm/_monitor.py:60);wait (threading.py:359)"
    works = FOLDED.replace("4551", "1") + " 3"
    found = take_folded([works, f"{FOLDED} 90", f"{other} 93", "end"])
    assert found.lines == 3
    assert [stack.frames[0].line for stack in found.stacks] == [4551, 359]


@pytest.mark.parametrize(
    "line", ["loss;acc 3", "a: 3; b: 4 5", "main (train.py:70)", "see train.py:70; then 12", "x 1", ""]
)  # fmt: skip
def test_other_lines_are_no_folded_stacks(line: str) -> None:
    assert not is_folded(line)


def test_two_processes_of_one_profile_stay_apart(tmp_path: Path) -> None:
    text = "".join(f'process {pid}:"python t.py";{FOLDED} 5\n' for pid in (41, 42))
    found: StackText = read_text(text)
    assert [one.pid for one in found.processes] == [41, 42]
    assert found.unread == 0


STEPPED = """(gdb) py-bt
(unable to read python frame information)
(gdb) py-up
#8 Frame 0xc7b448, for file /usr/lib/python3.6/multiprocessing/synchronize.py, line 96, in __enter__ (self=<Lock at remote 0x7ff>)
    return self._semlock.__enter__()
(gdb) py-up
#16 Frame 0x7ffb4e78, for file /w/pool.py, line 44, in worker (inqueue=<SimpleQueue>)
    task = get()
"""
TURNED = """(gdb) info threads
  Id   Target Id                                 Frame
* 1    Thread 0x7f1 (LWP 50) "python3"    0x00007f11 in ?? () from /lib/libc.so.6
  2    Thread 0x7f2 (LWP 51) "ucx-vfs"    0x00007f12 in read () from /lib/libc.so.6
(gdb) thr 2
[Switching to thread 2 (Thread 0x7f2 (LWP 51))]
#0  0x00007f12 in read () from /lib/libc.so.6
(gdb) bt
#0  0x00007f12 in read () from /lib/libc.so.6
#1  0x00007f13 in ucs_vfs_fuse_thread_func (arg=<optimized out>) at vfs_fuse.c:372
(gdb) thr 1
[Switching to thread 1 (Thread 0x7f1 (LWP 50))]
#0  0x00007f11 in ?? () from /lib/libc.so.6
(gdb) bt
#0  0x00007f11 in ?? () from /lib/libc.so.6
#1  0x00007f14 in pthread_cond_wait () from /lib/libc.so.6
"""


def test_frames_to_which_gdb_steps_are_one_stack() -> None:
    (process,) = read_text(STEPPED).processes
    (stack,) = process.stacks
    assert [frame.function for frame in stack.frames] == ["__enter__", "worker"]


def test_threads_to_which_gdb_turns_are_of_one_process() -> None:
    found = read_text(TURNED)
    (process,) = found.processes
    assert [(stack.tid, len(stack.frames)) for stack in process.stacks] == [(51, 2), (50, 2)]
    assert process.main is not None
    assert process.main.tid == 50
    assert found.unread == 0
