"""Start a training job whose ranks tell their steps; no line of its script changes."""

import os
import shlex

import click

from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs import trace_start
from mldebug_agents.jobs.job_start import become, callers_environment, environment, hook_folder

PIPE, CALLS = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
MEMORY = "MLDEBUG_MEMORY_HISTORY"  # read by the hook at its start
RECORDED = "2000"  # calls; what PyTorch takes by itself since 2.11


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--print-env", is_flag=True, help="Print the lines for a Slurm script or a pod.")
@click.option(
    "--nccl-pipe",
    metavar="PREFIX",
    help="Have NCCL make the FIFO PREFIX<rank>.pipe for its Flight Recorder, too. The hook does not need it.",
)
@trace_start.trace_options("trace-", size="16MiB")
@click.option(
    "--memory-history",
    is_flag=True,
    help="Have PyTorch remember which line made each block of CUDA memory; told when memory runs out.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND ...")
def command(
    print_env: bool,
    nccl_pipe: str | None,
    traced: trace_start.TraceOptions,
    memory_history: bool,
    words: tuple[str, ...],
) -> None:
    """Start a job whose ranks tell their steps: mldebug run -- torchrun train.py

    Each rank says what step it has reached and what it does besides, and can be asked for its stacks without ptrace.
    The job takes the place of this command: its exit code and its signals are its own.
    """
    folder = hook_folder()
    ring = _ring_settings(traced)
    settings = {**pipe_settings(nccl_pipe), **({MEMORY: "1"} if memory_history else {})}
    if print_env:
        click.echo(f"export PYTHONPATH={shlex.quote(str(folder))}${{PYTHONPATH:+:$PYTHONPATH}}")
        for name, value in {**settings, **ring}.items():
            click.echo(f"{name}=${{{name}:-{shlex.quote(value)}}}; export {name}")
        return
    if not words or not words[0]:
        raise UsageError("no job was named", "mldebug run -- torchrun train.py")
    environ = callers_environment(os.environ)
    become(words, {**settings, **environ, **environment(environ, folder), **ring})


def _ring_settings(traced: trace_start.TraceOptions) -> dict[str, str]:
    """The variables that have each rank traced; none where no package was named. UsageError where it is only said how."""
    if traced.include:
        return trace_start.variables(traced)
    if traced != trace_start.TraceOptions(size=traced.size):
        raise UsageError(
            "these options of the trace need to know which code to follow",
            "add --trace uninstalled",
        )
    return {}


def pipe_settings(prefix: str | None) -> dict[str, str]:
    """PyTorch's variables for the debug FIFO of NCCL.

    `prefix`: the path before each rank's number; none: no variables.
    """
    return {PIPE: prefix, CALLS: RECORDED} if prefix else {}


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug run`: start a training job whose ranks tell their steps; no line of its script changes."""
    return command
