"""Whose code a file is, by its path: the job's own, an installed package's, a framework's, or a library's.

A stack passes through many packages. A report names the innermost line of the job's own code. Only where a thread has none (its
training loop is one that a framework ships) it names a line of an installed package, or else of the framework. Libraries (torch, the
standard library) are what all of them call to wait, and are never named.
"""

import enum
import re
from functools import lru_cache
from itertools import pairwise

INSTALLED = re.compile(
    r"/(?:site|dist)-packages/|\.(?:whl|egg)/|/archive-v0/[\w-]+/|/(?=mldebug_training/)"
)
"""What stands before an installed package: pip's and conda's folders, unpacked wheels (PEX, uv); the hook may lie anywhere."""

FRAMEWORKS = (
    *("accelerate", "apex", "bitsandbytes", "colossalai", "composer", "deepspeed", "fairscale", "flash_attn"),
    *("haliax", "horovod", "jax", "jaxlib", "equinox", "flax", "levanter", "optax", "orbax", "chex"),
    *("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"),
    *("liger_kernel", "megatron/core", "megatron/bridge", "megatron_fsdp", "nemo", "nemo_rl", "openrlhf", "peft"),
    *("ray", "sentence_transformers", "torchao", "torchft", "torchtitan", "torchtune", "transformer_engine"),
    *("transformers", "trl", "unsloth", "unsloth_zoo", "verl", "vllm", "sglang", "xformers", "torch_xla", "torch_npu"),
    *("deep_ep", "ring_flash_attn", "yunchang", "tensorflow", "keras", "tf_keras", "torchrec", "paddle", "axlearn"),
    *("xgboost", "lightgbm", "distributed", "diffusers", "numpy", "pandas", "pyarrow", "PIL", "tqdm", "wandb", "mlflow"),
    *("tensorboard", "huggingface_hub", "fsspec", "hydra", "click", "typer", "absl"),
    *("ipykernel", "IPython", "tornado", "zmq", "traitlets", "joblib", "requests", "urllib3", "opentelemetry"),
)  # fmt: skip
"""Packages by the folder that they are imported from. Left out is what may be a folder of the job (`datasets`, `timm`,
`fire`), and Megatron-LM's `megatron/training`, of which people train a copy."""

BELOW: dict[str, str] = {
    "torch": r"_\w+|amp|ao|autograd|backends|compiler|cuda|distributed|export|functional|fx|jit|multiprocessing|nn|optim|overrides|serialization|"
    r"storage|testing|xpu|utils/(?:_\w+|checkpoint|cpp_extension|data/(?:_utils|dataloader|datapipes|dataset|distributed|sampler)|file_baton|hooks|tensorboard)",
    "accelerate": r"accelerator|big_modeling|commands|data_loader|hooks|launchers|optimizer|scheduler|state|tracking",
    "colossalai": r"accelerator|booster|cli|inference|legacy|nn|pipeline|shardformer|zero",
    "composer": r"algorithms|callbacks|checkpoint|cli|core|distributed|loggers|trainer",
    "deepspeed": r"__init__|accelerator|checkpoint|comm|inference|launcher|module_inject|moe|ops|pipe|runtime|sequence",
    "distributed": r"batched|cli|client|comm|compatibility|core|nanny|scheduler|threadpoolexecutor|utils|worker\w*",
    "flax": r"core|linen|nnx|training",
    "horovod": r"common|ray|runner|spark|tensorflow|torch",
    "jax": r"_src|experimental|interpreters|lax|numpy",
    "jaxlib": r"\w+",
    "lightning": r"fabric|pytorch",
    "lightning_fabric": r"accelerators|connector|fabric|plugins|strategies|utilities|wrappers",
    "megatron/bridge": r"data|models|peft|recipes|training|utils",
    "megatron/core": r"\w+",
    "nemo": r"collections|core|lightning|utils",
    "nemo_rl": r"algorithms|data|distributed|environments|models|utils",
    "openrlhf": r"cli|datasets|models|trainer|utils",
    "peft": r"mapping|peft_model|tuners|utils",
    "pytorch_lightning": r"accelerators|callbacks|core|loops|plugins|strategies|trainer|utilities",
    "ray": r"_private|_raylet|actor|air/_internal|dag|dashboard|data/_internal|experimental|remote_function|rllib|serve/_private|"
    r"train/(?:_internal|base_trainer|collective|data_parallel_trainer|huggingface|lightning|torch|v2)|tune/(?:execution|trainable)|util",
    "sglang": r"lang|multimodal_gen|srt",
    "tensorflow": r"_api|compiler|core|python",
    "keras": r"api|src|engine|callbacks|layers|models|optimizers|utils/(?:traceback_utils|data_utils)",
    "paddle": r"_C_ops|base|distributed|framework|io|nn|optimizer",
    "torchrec": r"distributed|metrics|modules|models|optim|sparse",
    "torch_xla": r"_internal|core|distributed|experimental|runtime",
    "torchtitan": r"components|config|distributed|experiments|hf_datasets|models|protocols|tools|train|trainer",
    "torchtune": r"config|data|datasets|models|modules|rlhf|training|utils",
    "transformer_engine": r"common|jax|pytorch",
    "transformers": r"generation|integrations|(?:configuration|masking|modeling|tokenization|trainer)_\w+|models|pipelines|trainer|training_args",
    "trl": r"core|experimental|extras|models|rewards|trainer",
    "verl": r"experimental|models|protocol|single_controller|third_party|trainer|utils|workers",
    "vllm": r"attention|compilation|distributed|engine|entrypoints|executor|model_executor|multimodal|sequence|v1|worker",
}  # fmt: skip
"""What packages have in their folder. With one of these behind its name a package is known wherever it lies: built from source, installed in
place, in an archive (.pex, .par, .zip). A folder of the job that is named alike has other files in it."""

_PLACED = re.compile(
    r"(?:^|/)((?:"
    + "|".join(f"{name}/(?:{below})" for name, below in BELOW.items())
    + r")(?:/|\.py$).*)"
)

_ARCHIVE = re.compile(r"\.(?:pex|par|zip|pyz|xar)/|#link-tree/|/xarfuse/[^/]+/(?:[^/]+/)?")
"""What stands before all code, the job's own as well, where it is run from one file."""

# py-spy shortens paths by sys.path, so recorded stacks may show a bare "threading.py".
_STDLIB = re.compile(
    r"/lib(?:64)?/(?:python|pypy)3\.\d+t?/(?!site-packages/|dist-packages/)|/python3\d+\.zip/|^<frozen |^<string>$|/torchinductor_\w+/"
)
_STDLIB_SHORT = re.compile(
    r"^(threading|queue|selectors|subprocess|socket|socketserver|ssl|bdb|pdb|cmd|codeop|code|runpy|contextlib|functools|"
    r"tempfile|shutil|pathlib|pickle|json/\w+|logging/\w+|asyncio/\w+|multiprocessing/\w+|concurrent/futures/\w+|"
    r"importlib/\w+|_pyrepl/\w+|http/\w+|urllib/\w+|email/\w+|weakref|copy|gzip|zipfile|tarfile|random|signal|"
    r"os|posixpath|genericpath|glob|fnmatch|codecs|encodings/\w+|linecache|inspect|traceback|warnings|bz2|lzma|_compression|"
    r"ctypes/\w+|sqlite3/\w+|xmlrpc/\w+|ftplib|smtplib)\.py$"
)
_LIBRARY = re.compile(
    r"^(torch|torchvision|triton|mldebug_training|filelock|portalocker|safetensors|deepspeed/comm|ipdb|pudb|debugpy)(/|\.py$)"
)
_NAMES = "|".join(sorted(map(re.escape, FRAMEWORKS), key=len, reverse=True))
_FRAMEWORK = re.compile(rf"^(?:{_NAMES})(?:/|\.py$)")
_SCRIPT = re.compile(r"[\w-]+")  # torchrun, accelerate: what pip writes to start a package


class Owner(enum.IntEnum):
    """Whose code a frame is; the smaller the value, the nearer to the job."""

    JOB = 0
    INSTALLED = 1  # in site-packages, and no framework that is known: perhaps the job's own package
    FRAMEWORK = 2
    LIBRARY = 3  # torch, the standard library, lock libraries: what the others call to wait


@lru_cache(maxsize=4096)
def owner(path: str, file: str) -> Owner:
    """Whose code a file is. `path`: its full name, "" where unknown; `file`: the short name that tools print."""
    short = not path.startswith("/") and _STDLIB_SHORT.match(file)  # /job/queue.py is the job's
    if _STDLIB.search(path) or short or file.startswith("<frozen") or file == "<string>":
        return Owner.LIBRARY
    inside = INSTALLED.split(path)[-1] if path else file
    shown = (package_path(path) or inside, file) if inside.startswith("/") else (inside,)
    if any(_LIBRARY.match(name) for name in shown):
        return Owner.LIBRARY
    if any(_FRAMEWORK.match(name) for name in shown) or _in_clone(inside):
        return Owner.FRAMEWORK
    if _SCRIPT.fullmatch(file):
        return Owner.FRAMEWORK
    return Owner.INSTALLED if inside != path and path else Owner.JOB


@lru_cache(maxsize=4096)
def package_path(path: str) -> str:
    """The path from the folder of its package on, `torch/nn/functional.py`; "" where the path shows no known package."""
    inside = INSTALLED.split(path)[-1]
    if inside != path and not inside.startswith("/"):
        return inside
    if found := _PLACED.search(path):
        return found[1]
    packed = _ARCHIVE.split(path)[-1]
    known = packed != path and (_LIBRARY.match(packed) or _FRAMEWORK.match(packed))
    return packed if known else ""


def _in_clone(path: str) -> bool:
    """Whether the file lies in a clone that is run in place: /src/haliax/haliax/…, ~/levanter/src/levanter/…"""
    parts = path.split("/")
    lower = [part.lower() for part in parts]
    for index, (above, name) in enumerate(pairwise(lower), start=1):
        sources = above == "src" and (parts[index] not in BELOW or name in lower[: index - 1])
        if (sources or above == name) and _FRAMEWORK.match("/".join(parts[index:])):
            return True
    return False
