"""Whether this process is a rank, judged by its environment and command line, before anything is imported."""

from __future__ import annotations

import os
import sys

from mldebug_training.common.interrupted import pass_on

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_PROGRAMS = (
    *("torchrun", "accelerate", "accelerate-launch", "deepspeed"),
    *("composer", "colossalai", "fabric", "lightning", "mldebug"),
)
_FILES = (
    *("torch/distributed/run.py", "torch/distributed/launch.py", "deepspeed/launcher/launch.py"),
    "torch/_inductor/compile_worker/__main__.py",
)
_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands"),
    *("deepspeed.launcher", "composer.cli", "joblib.externals.loky"),
    *("mldebug", "mldebug_training"),  # which become the job, and it finds its signals as they were
)
_HELPERS = (
    *("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker"),
    *("multiprocess.spawn", "multiprocess.forkserver", "multiprocess.resource_tracker"),  # dill's
)
_TAKES_WORD = ("-W", "-X", "--check-hash-based-pycs")  # options of Python itself


def rank_and_size() -> tuple[int, int]:
    """Rank and world size from the environment; -1 for each that is missing or invalid."""
    return _number(_RANK), _number(_SIZE)


def is_rank() -> bool:
    """Whether this process is a rank: it has a rank number, and is neither a launcher nor started by multiprocessing."""
    rank, size = rank_and_size()
    return rank >= 0 and (size < 0 or rank < size) and not _is_helper(command_line())


def is_launcher() -> bool:
    """Whether this process only starts others, as torchrun does; children of multiprocessing run the job's own code and are
    none.
    """
    words = command_line()
    ours = "--multiprocessing-fork" in words or any("forkserver" in word for word in words)
    return _is_helper(words) and not ours


def command_line() -> list[str]:
    """The command line of this process; `sys.argv` does not exist yet when the interpreter starts."""
    words = getattr(sys, "orig_argv", None)
    if words:
        return [str(word) for word in words]
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError as error:
        pass_on(error)
        return []


def _is_helper(words: list[str]) -> bool:
    """The script's own arguments say nothing: many a training script has an option for the launcher."""
    option, program = _program(words)
    if option == "c":
        return any(name in program for name in _HELPERS)
    if option == "m":
        return any(f"{program}.".startswith(f"{name}.") for name in _MODULES)
    return os.path.basename(program) in _PROGRAMS or program.endswith(_FILES)


def _program(words: list[str]) -> tuple[str, str]:
    """What Python was told to run: "c" and the code, "m" and the module, or "" and the file; all as `python --help` has it."""
    rest = iter(words[1:])
    for word in rest:
        if word in _TAKES_WORD:
            next(rest, "")
        elif word[:2] == "--" or word[:2] in _TAKES_WORD:
            continue
        elif word[:1] == "-" and word != "-":
            for place, letter in enumerate(word):
                if letter in "cm":
                    return letter, word[place + 1 :] or next(rest, "")
        else:
            return "", word
    return "", ""


def _number(names: tuple[str, ...]) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return -1
