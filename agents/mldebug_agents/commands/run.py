"""Start a training job whose ranks tell their steps; no line of its script changes."""

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from mldebug.errors import ToolError, UsageError
from mldebug.redact import clean

HOOK = "mldebug_training"
FOLDER = "startup"
PIPE, CALLS = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python from its start; the job would inherit it
RECORDED = "2000"  # calls; what PyTorch takes by itself since 2.11
LOCALE = "LC_CTYPE"  # which Python sets for itself where the locale is C (PEP 538); the job would inherit it


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--print-env", is_flag=True, help="Print the lines for a Slurm script or a pod.")
@click.option(
    "--nccl-pipe",
    metavar="PREFIX",
    help="Have NCCL make the FIFO PREFIX<rank>.pipe for its Flight Recorder, too. The hook does not need it.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND ...")
def command(print_env: bool, nccl_pipe: str | None, words: tuple[str, ...]) -> None:
    """Start a job whose ranks tell their steps: mldebug run -- torchrun train.py

    Each rank says what step it has reached and what it does besides, and can be asked for its stacks without ptrace.
    The job takes the place of this command: its exit code and its signals are its own.
    """
    folder = hook_folder()
    if print_env:
        click.echo(f"export PYTHONPATH={shlex.quote(str(folder))}${{PYTHONPATH:+:$PYTHONPATH}}")
        for name, value in pipe_settings(nccl_pipe).items():
            click.echo(f"{name}=${{{name}:-{shlex.quote(value)}}}; export {name}")
        return
    if not words or not words[0]:
        raise UsageError("no job was named", "mldebug run -- torchrun train.py")
    told = callers_environment(os.environ)
    become(words, {**pipe_settings(nccl_pipe), **told, **environment(told, folder)})


def callers_environment(
    now: Mapping[str, str], first: str = "/proc/self/environ"
) -> dict[str, str]:
    """Without what Python has changed since this process was started; `first` is what it was started with."""
    told = {name: one for name, one in now.items() if name != LOCALE}
    try:
        given = Path(first).read_bytes().split(b"\0")
    except OSError:  # no /proc
        return dict(now)
    begun = [os.fsdecode(one) for one in given if one.startswith(f"{LOCALE}=".encode())]
    return told | dict(one.split("=", 1) for one in begun[:1])


def environment(old: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables that bring the hook into every Python process below; what the user has set stays."""
    told = old.get("PYTHONPATH", "")  # an empty entry in it is the current folder
    paths = [path for path in told.split(":") if path != str(folder)] if told else []
    return {"PYTHONPATH": ":".join([str(folder), *paths])}


def pipe_settings(prefix: str | None) -> dict[str, str]:
    """Of PyTorch, for the FIFO of legacy NCCL; what the user has set stays. Nothing without a prefix."""
    return {PIPE: prefix, CALLS: RECORDED} if prefix else {}


def hook_folder() -> Path:
    """Where the hook's `sitecustomize.py` lies, alone."""
    spec = find_spec(HOOK)
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = Path(places[0]) / FOLDER if places else None
    if folder is None or not (folder / "sitecustomize.py").is_file():
        raise ToolError("the hook is not installed", "pip install mldebug-training")
    return folder


def become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Run the job in place of this process, with the two signals at their default that Python ignores."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], list(words), dict(environ))  # noqa: S606 - an argument list, no shell
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{clean(words[0], 100)!r} cannot be started: {reason}", "is it on the PATH?"
        ) from None


def create(_: Options) -> click.Command:
    """Build the verb."""
    return command
