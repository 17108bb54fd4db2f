"""What a probe's child is given: the Python of the training environment, environment variables and rights."""

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from mldebug.core.errors import ToolError, UsageError
from mldebug.probes.nccl_settings import invalid_settings

INSIDE = Path(__file__).with_name("inside")


WAY_OUT = "name the training environment's: --python /path/to/env/bin/python"


def find_python(named: str | None) -> str:
    """The path of the program `named`; if None, of our own Python. Raises UsageError where there is no such program, ToolError
    where our own Python has no torch.
    """
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"--python {named}: there is no such program", WAY_OUT)
        return str(Path(found).absolute())
    if find_spec("torch") is None:
        raise ToolError("a probe needs PyTorch, which the Python of mldebug does not have", WAY_OUT)
    return sys.executable


JOB = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_"),
    *("OMPI_", "PMI_", "PMIX_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_CPP_LOG_LEVEL"),
)
OTHERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONINSPECT")  # fmt: skip
NO_SETTING = ("NCCL_VERSION",)  # a label of images; NCCL does not read it
RELEVANT = ("NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "UCX_", "FI_")


class ProbeEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment for the processes that a probe starts.

    `variables`: all variables that they get, by name. `kept`: those among them that can change a measurement (NCCL_*, UCX_* and the like), for the
    report. `dropped`: names of variables that they do not get, because these belong to a job or to this program's own Python.
    """

    variables: dict[str, str]
    kept: dict[str, str]
    dropped: tuple[str, ...]


def child_environment(own: Mapping[str, str]) -> ProbeEnvironment:
    """The environment for a child: our own variables, without those that belong to a job or to our own Python."""
    dropped = {name for name in own if name.startswith(JOB) or name in OTHERS}
    variables = {name: value for name, value in own.items() if name not in dropped}
    settings = sorted(variables.keys() - set(NO_SETTING))
    kept = {name: variables[name] for name in settings if name.startswith(RELEVANT)}
    variables.setdefault("OMP_NUM_THREADS", "1")
    return ProbeEnvironment(variables=variables, kept=kept, dropped=tuple(sorted(dropped)))


def checked_variables() -> dict[str, str]:
    """The variables of this process's environment that change a measurement; raises UsageError for values that NCCL does not understand."""
    kept = child_environment(os.environ).kept
    if problems := tuple(invalid_settings(kept)):
        raise UsageError("\n".join(problems), "unset it, or correct it")
    return kept


_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4


def keep_rights_here() -> None:
    """Have programs that are started from now on get none of the capabilities that a service gave this process; the process and
    its forks keep them.

    Programs that root starts keep all rights. A kernel without ambient capabilities has none to clear.
    """
    ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
