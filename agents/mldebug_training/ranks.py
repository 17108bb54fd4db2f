"""Is this process a rank? Told by its environment and its command line, before anything is imported."""

from __future__ import annotations

import os
import sys

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py"),
    *("accelerate.commands", "deepspeed.launcher", "bin/accelerate", "bin/deepspeed"),
)
_HELPERS = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
)


def rank_and_size() -> tuple[int, int]:
    """What the environment says; -1 where it says nothing, or nonsense."""
    return _number(_RANK), _number(_SIZE)


def is_rank() -> bool:
    """Has it a rank, and is it neither a launcher nor one that multiprocessing has started?"""
    rank, size = rank_and_size()
    return rank >= 0 and (size < 0 or rank < size) and not _is_helper(command_line())


def command_line() -> list[str]:
    """The words of this process; `sys.argv` is not there yet when the interpreter starts."""
    words = getattr(sys, "orig_argv", None)
    if words:
        return [str(word) for word in words]
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


def _is_helper(words: list[str]) -> bool:
    first = words[1:4]  # further on stand the script's own arguments
    return any(name in word for word in first for name in (*_LAUNCHERS, *_HELPERS))


def _number(names: tuple[str, ...]) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return -1
