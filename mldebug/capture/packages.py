"""Whose code a file is, by its path: the job's own, an installed package's, a framework's, or a library's that waits.

A stack passes through many packages. The place that a report names is the job's own line; only where a thread has
none of its own (a recipe that ships with its framework) another package's line stands in for it.
"""

import enum
import re
from functools import lru_cache
from itertools import pairwise

INSTALLED = re.compile(
    r"/(?:site|dist)-packages/|/(?=mldebug_training/)"
)  # the hook may lie anywhere

FRAMEWORKS = (
    *("accelerate", "apex", "bitsandbytes", "colossalai", "composer", "deepspeed", "fairscale", "flash_attn"),
    *("haliax", "horovod", "jax", "jaxlib", "equinox", "flax", "levanter", "optax", "orbax", "chex"),
    *("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"),
    *("liger_kernel", "megatron/core", "megatron/bridge", "megatron_fsdp", "nemo", "nemo_rl", "openrlhf", "peft"),
    *("ray", "sentence_transformers", "torchao", "torchft", "torchtitan", "torchtune", "transformer_engine"),
    *("transformers", "trl", "unsloth", "unsloth_zoo", "verl", "vllm", "sglang", "xformers", "torch_xla"),
    *("diffusers", "numpy", "pandas", "pyarrow", "PIL", "tqdm", "wandb", "mlflow"),
    *("tensorboard", "huggingface_hub", "fsspec", "hydra", "click", "typer", "absl"),
    *("ipykernel", "IPython", "tornado", "zmq", "traitlets", "joblib", "requests", "urllib3", "opentelemetry"),
)  # fmt: skip
"""Packages by the folder that they are imported from. Left out is what may be a folder of the job (`datasets`, `timm`,
`fire`), and Megatron-LM's `megatron/training`, of which people train a copy."""

# py-spy shortens paths by sys.path, so recorded stacks may show a bare "threading.py".
_STDLIB = re.compile(
    r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen |^<string>$|/torchinductor_\w+/"
)
_STDLIB_SHORT = re.compile(
    r"^(threading|queue|selectors|subprocess|socket|socketserver|ssl|bdb|pdb|cmd|codeop|code|runpy|contextlib|functools|"
    r"tempfile|shutil|pathlib|pickle|json/\w+|logging/\w+|asyncio/\w+|multiprocessing/\w+|concurrent/futures/\w+|"
    r"importlib/\w+|_pyrepl/\w+|http/\w+|urllib/\w+|email/\w+|weakref|copy|gzip|zipfile|tarfile|random|signal)\.py$"
)
_LIBRARY = re.compile(
    r"^(torch|torchvision|triton|mldebug_training|filelock|portalocker|safetensors|deepspeed/comm|ipdb|pudb|debugpy)(/|\.py$)"
)
_NAMES = "|".join(sorted(map(re.escape, FRAMEWORKS), key=len, reverse=True))
_FRAMEWORK = re.compile(rf"^(?:{_NAMES})(?:/|\.py$)")
_CLONES = (
    "src",
    "deepspeed",
    "megatron-lm",
)  # folders of repositories, beside those named as the package
_SCRIPT = re.compile(r"[\w-]+")  # torchrun, accelerate: what pip writes to start a package


class Owner(enum.IntEnum):
    """Whose code a frame is; the smaller, the nearer to the job."""

    JOB = 0
    INSTALLED = 1  # in site-packages, and no framework that is known: perhaps the job's own package
    FRAMEWORK = 2
    LIBRARY = 3  # torch, the standard library, lock libraries: what the others call to wait


@lru_cache(maxsize=4096)
def owner(path: str, file: str) -> Owner:
    """Whose code a file is. `path`: its full name, "" where unknown; `file`: the short name that tools print."""
    if _STDLIB.search(path) or _STDLIB_SHORT.match(file) or file.startswith("<frozen"):
        return Owner.LIBRARY
    inside = INSTALLED.split(path)[-1] if path else file
    shown = (inside, file) if inside.startswith("/") else (inside,)
    if any(_LIBRARY.match(name) for name in shown):
        return Owner.LIBRARY
    if any(_FRAMEWORK.match(name) for name in shown) or _in_clone(inside):
        return Owner.FRAMEWORK
    if _SCRIPT.fullmatch(file):
        return Owner.FRAMEWORK
    return Owner.INSTALLED if inside != path and path else Owner.JOB


def _in_clone(path: str) -> bool:
    """Whether the file lies in a clone that is run in place: /src/DeepSpeed/deepspeed/…, ~/transformers/src/transformers/…"""
    parts = path.split("/")
    return any(
        above.lower() in (*_CLONES, name.lower()) and _FRAMEWORK.match("/".join(parts[index:]))
        for index, (above, name) in enumerate(pairwise(parts), start=1)
    )
