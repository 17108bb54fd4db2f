"""The environment of a probe's child: ours without the traces of a job that we may run in ourselves."""

import os
from collections.abc import Mapping

import msgspec

from mldebug.core.errors import UsageError
from mldebug.probes.nccl_settings import nonsense

JOB = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_"),
    *("OMPI_", "PMI_", "PMIX_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_CPP_LOG_LEVEL"),
)
OTHERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONINSPECT")  # fmt: skip
NO_SETTING = ("NCCL_VERSION",)  # a label of images; NCCL does not read it
TOLD = ("NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "UCX_", "FI_")


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """`kept` are those of the variables that change a measurement, `dropped` the names of those left out."""

    variables: dict[str, str]
    kept: dict[str, str]
    dropped: tuple[str, ...]


def prepare(own: Mapping[str, str]) -> Environment:
    """Leave out what belongs to another job or to our own Python; name what stays and matters."""
    dropped = {name for name in own if name.startswith(JOB) or name in OTHERS}
    variables = {name: value for name, value in own.items() if name not in dropped}
    settings = sorted(variables.keys() - set(NO_SETTING))
    kept = {name: variables[name] for name in settings if name.startswith(TOLD)}
    variables.setdefault("OMP_NUM_THREADS", "1")
    return Environment(variables=variables, kept=kept, dropped=tuple(sorted(dropped)))


def sane_variables(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those that change what is measured; UsageError for what NCCL cannot obey: it would say so in a riddle."""
    kept = prepare(os.environ if own is None else own).kept
    if problems := tuple(nonsense(kept)):
        raise UsageError("\n".join(problems), "unset it, or correct it")
    return kept
