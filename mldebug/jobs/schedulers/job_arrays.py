"""Job arrays: one submission that a scheduler runs as many tasks, each with an environment that says so. Pure."""

from collections.abc import Mapping

from mldebug.core.redact import clean

# the variable with the array's id, the one with the task's number, and what that is where there is no array
_VARIABLES = (
    ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", ""),
    (
        "PBS_ARRAY_ID",
        "PBS_ARRAY_INDEX",
        "",
    ),  # PBS Pro; PBS_JOBID is the task's own, as 123[4].server
    ("LSB_JOBID", "LSB_JOBINDEX", "0"),
    ("JOB_ID", "SGE_TASK_ID", "undefined"),  # Grid Engine
)


def array_id(environ: Mapping[str, str]) -> str:
    """The id that all tasks of a job array share, from a process's environment; "" where the process is no such task."""
    for array, task, none in _VARIABLES:
        if environ.get(array) and environ.get(task, none) != none:
            return clean(environ[array], 80)
    return ""
