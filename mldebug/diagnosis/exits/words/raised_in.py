"""Whether an exception was raised in code through which ranks talk to each other: by its innermost frame. Pure.

There an error of general type may tell of anybody, whatever its words. So it is in an installed package that is not known to compute
only: it may talk to a server or to other ranks. The innermost frame counts, and where it calls into native
code the call in its line of source: `comm.Allreduce(a, b)`.
"""

import re
from collections.abc import Sequence

from mldebug.diagnosis.exits.words.tracebacks import Traceback

_CODE = re.compile(
    r"(?:/|File \")(?:torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous|rpc/|elastic/|checkpoint/(?:utils|_async\w*)|_symmetric_memory|collective_utils)"
    r"|torch/_C/_distributed|torch/multiprocessing/spawn|torch/utils/data/\w{0,20}distributed|horovod/|mpi4py/|src/mpi4py/|deepspeed/comm/|deepspeed/elasticity"
    r"|jax/experimental/multihost_utils|jax/_src/distributed|ray/|monarch/|nvidia_resiliency_ext/|torchft/|deep_ep/|nixl\w{0,12}/|mooncake/|lmcache/|zmq/|grpc/|etcd\w{0,4}/"
    r"|orbax/checkpoint/[\w/]{0,80}multihost|orbax/checkpoint/utils|vllm/(?:v1/engine|v1/executor|executor|distributed)|sglang/srt/(?:distributed|managers)"
    r"|multiprocessing/(?:connection|managers|queues|synchronize)|asyncio/|concurrent/futures/|accelerate/utils/operations|transformer_engine/\w{1,40}/(?:distributed|module/base)"
    r"|tensorflow/python/distribute|pynccl\w{0,20}|cupyx?/(?:cuda/nccl|distributed)|socket\.py|ssl\.py)"
)
# Installed packages that compute, read or write, and talk to nobody
_COMPUTES = (
    "torch", "torchvision", "torchaudio", "torchao", "torchtune", "torchmetrics", "functorch", "transformers", "triton", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "jax",
    "jaxlib", "flax", "optax", "haiku", "equinox", "levanter", "haliax", "flash_attn", "bitsandbytes", "safetensors", "diffusers", "peft", "timm", "datasets", "tokenizers", "xformers", "apex",
    "deepspeed", "megatron", "transformer_engine", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "PIL", "cv2", "albumentations", "einops", "liger_kernel", "unsloth",
    "unsloth_zoo", "trl", "axolotl", "open_clip", "fairseq", "nemo", "mmcv", "mmengine", "mmdet", "detectron2", "ultralytics", "monai", "dgl", "torch_geometric", "tensorflow", "keras",
    "h5py", "zarr", "lmdb", "webdataset", "sentencepiece", "tiktoken", "hydra", "omegaconf", "pydantic", "yaml", "tqdm", "wandb", "tensorboard", "mlflow", "huggingface_hub", "fsspec", "s3fs",
    "boto3", "botocore", "google", "azure", "requests", "urllib3", "decord", "av", "librosa", "soundfile", "causal_conv1d", "mamba_ssm", "fla", "flashinfer", "cutlass", "nvidia",
)  # fmt: skip
_OF_UNKNOWN = re.compile(rf"/(?:site|dist)-packages/(?!(?:{'|'.join(_COMPUTES)})(?:/|\.py))")
_CALL = re.compile(
    r"\b(?:all_?reduce|all_?gather\w{0,12}|reduce_?scatter\w{0,12}|all_?to_?all\w{0,8}|broadcast(?:_object_list)?|barrier|monitored_barrier|sync_global\w{0,12}|process_allgather"
    r"|init_process_group|wait_at_barrier|isend|irecv|TCPStore|ray\.get|blocking_key_value_get)\(",
    re.IGNORECASE,
)
_RAISED = re.compile(r"\s*(?:raise|assert)\b")


def in_group_code(lines: Sequence[str], found: Traceback) -> bool:
    """Whether the innermost frame of a traceback is in communication code, or calls it."""
    at = _innermost(lines, found)
    if at is None:
        return False
    if _CODE.search(lines[at]):
        return True
    source = lines[at + 1] if at + 1 < found.end else ""
    return _CALL.search(source) is not None and not _RAISED.match(source)


def in_unknown_package(lines: Sequence[str], found: Traceback) -> bool:
    """Whether the innermost frame lies in an installed package of which nothing is known."""
    at = _innermost(lines, found)
    return at is not None and _OF_UNKNOWN.search(lines[at]) is not None


def _innermost(lines: Sequence[str], found: Traceback) -> int | None:
    frames = [at for at in range(found.start, found.end) if 'File "' in lines[at]]
    return frames[-1] if frames else None
