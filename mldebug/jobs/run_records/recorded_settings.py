"""Which variables and packages of a job are recorded, and how a command line is taken apart. Pure."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mldebug.core.redact import HIDDEN, clean, redact, redact_argv

MOST, LONGEST = 160, 2000  # variables; characters of a value
MOST_WORDS = 2000  # of a command line
MOST_TOGETHER = 48 << 10  # characters of all variables, and of all words
MOST_PACKAGES = 1500

_BEGINNINGS = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OMPI_MCA_", "SHARP_", "MELLANOX_"),
    *("TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "CUDA_", "CUDNN_"),
    *("CUBLAS_", "NVIDIA_", "NVTE_", "HIP_", "HSA_", "ROCR_", "ROCM_", "MIOPEN_", "XLA_", "JAX_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "PYTHON", "HF_", "TRANSFORMERS_"),
    *("TOKENIZERS_", "DS_", "DEEPSPEED_", "ACCELERATE_", "FSDP_", "MEGATRON_", "NEMO_", "VLLM_"),
    *("WANDB_MODE", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_", "TZ"),
    *("SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_JOB_ACCOUNT", "SLURM_CPUS_PER_TASK"),
)
_NEW_IN_EACH_RUN = frozenset(
    {
        *("NCCL_COMM_ID", "NCCL_RAS_ADDR", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"),
        *("JAX_PROCESS_ID", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "CONDA_SHLVL", "CONDA_PROMPT_MODIFIER"),
    }
)  # fmt: skip
"""Addresses and numbers that a launcher makes up: they differ always and explain nothing."""

_OF_ONE_MPIRUN = (
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess_",
    "OMPI_MCA_pmix_",
    "OMPI_MCA_prte_",
    "OMPI_MCA_initial_",
)
"""Open MPI tells its ranks so where its daemons are, their key and session folders: not what somebody has chosen."""

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][\w.]{0,120})-(?P<version>[0-9][\w.+!]{0,60})(?:-py[\d.]{1,8})?\.(?:dist|egg)-info")  # fmt: skip
_PYTHON = re.compile(r"python(\d{1,2}\.\d{1,2})")


def recorded_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job's environment that may explain how it runs, in order, without secrets: at most `MOST`, of
    `MOST_TOGETHER` characters; fewer than `explaining` names where that is not all of them.
    """
    found: dict[str, str] = {}
    room = MOST_TOGETHER
    for name in explaining(variables)[:MOST]:
        value = _value(name, variables[name])
        room -= len(name) + len(value)
        if room < 0:
            break
        found[clean(name, 80)] = value
    return found


def explaining(variables: Mapping[str, str]) -> list[str]:
    """The names of the variables that may explain how a job runs, in order."""
    return sorted(
        name
        for name in variables
        if name.startswith(_BEGINNINGS) and not _is_new_in_each_run(name) and len(name) <= 80
    )


def _is_new_in_each_run(name: str) -> bool:
    return name in _NEW_IN_EACH_RUN or name.startswith(_OF_ONE_MPIRUN)


def recorded_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without secrets: at most `MOST_WORDS`, of `MOST_TOGETHER` characters."""
    found: list[str] = []
    room = MOST_TOGETHER
    for word in redact_argv([clean(one, len(one)) for one in words[:MOST_WORDS]]):
        short = _shortened(word)
        room -= len(short)
        if room < 0:
            break
        found.append(short)
    return tuple(found)


def _value(name: str, value: str) -> str:
    before = f"{name}="
    hidden = redact(before + clean(value, len(value)))
    return _shortened(hidden[len(before) :]) if hidden.startswith(before) else HIDDEN


def _shortened(text: str) -> str:
    """At most `LONGEST` characters. What is cut ends in what tells it from others with the same beginning."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
    end = f"… ({len(text):,} characters, sha256 {digest})"
    return text[: LONGEST - len(end)] + end


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions by package, from the names of what lies in `site-packages`: `numpy-2.1.0.dist-info`."""
    found: dict[str, str] = {}
    for name in names:
        match = _PACKAGE.fullmatch(name)
        if match and len(found) < MOST_PACKAGES:
            found[re.sub(r"[-_.]+", "-", match["name"]).lower()] = match["version"]
    return dict(sorted(found.items()))


def python_version(folder: str) -> str:
    """The version in the path of a `site-packages` folder, as `3.11`; "" where it has none."""
    found = _PYTHON.search(folder)
    return found[1] if found else ""


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """A command line as options and their values, behind the program's own words.

    `--lr 1e-3`, `--lr=1e-3` and `optim.lr=1e-3` have a name; what has none is counted: `argument 1`. An option that comes twice
    has both values.
    """
    found: dict[str, list[str]] = {}
    for name, value in _pairs(_behind_program(arguments)):
        found.setdefault(name, []).append(value)
    return {name: " ".join(filter(None, values)) for name, values in found.items()}


def _behind_program(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments of the script or module that Python runs; all but the first word where no Python runs."""
    words = list(arguments[1:])
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-m", "-c"):
            break
        if option in ("-X", "-W") and words:
            words.pop(0)
    return words[1:]


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    name, free = "", 0
    values: list[str] = []
    for word in words:
        is_option = word.startswith("-") and not _is_number(word)
        named, sign, value = word.partition("=")
        if is_option or (sign and re.fullmatch(r"[+~\w./@-]{1,120}", named)):
            if name:
                yield name, " ".join(values)
            name, values = "", []
            if sign:
                yield named, value
            else:
                name = word
        elif name:
            values.append(word)
        else:
            free += 1
            yield f"argument {free}", word
    if name:
        yield name, " ".join(values)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
