"""Which job array a process is a task of, by its environment."""

import pytest

from mldebug.jobs.schedulers.job_arrays import array_id


@pytest.mark.parametrize(
    ("environ", "array"),
    [
        ({"SLURM_JOB_ID": "4715", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "4"}, "4711"),
        ({"SLURM_JOB_ID": "4715"}, ""),
        ({"PBS_JOBID": "12[3].host", "PBS_ARRAY_ID": "12[].host", "PBS_ARRAY_INDEX": "3"}, "12[].host"),
        ({"PBS_JOBID": "12.host"}, ""),
        ({"LSB_JOBID": "88", "LSB_JOBINDEX": "2"}, "88"),
        ({"LSB_JOBID": "88", "LSB_JOBINDEX": "0"}, ""),
        ({"JOB_ID": "7", "SGE_TASK_ID": "1"}, "7"),
        ({"JOB_ID": "7", "SGE_TASK_ID": "undefined"}, ""),
        ({"JOB_ID": "7"}, ""),  # of any program
        ({"SLURM_ARRAY_JOB_ID": "\x1b[31m" + "9" * 200, "SLURM_ARRAY_TASK_ID": "1"}, None),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_array_of_a_process(environ: dict[str, str], array: str | None) -> None:
    found = array_id(environ)
    if array is None:
        assert len(found) <= 80
        assert "\x1b" not in found
    else:
        assert found == array
