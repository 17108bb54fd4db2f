"""Where an exception was raised, by its innermost frame: in code through which ranks talk to each other, or by the job's own `raise`. Pure.

There an error of general type may tell of anybody, whatever its words. So it is in an installed package that is not known to compute
only: it may talk to a server or to other ranks. The innermost frame counts, and where it calls into native
code the call in its line of source: `comm.Allreduce(a, b)`, `future.result()`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_CODE = re.compile(
    r"(?:/|File \")(?:torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous|rpc/|elastic/|checkpoint/(?:utils|_async\w*)|_symmetric_memory|collective_utils)"
    r"|torch/_C/_distributed|torch/multiprocessing/spawn|torch/utils/data/\w{0,20}distributed|horovod/|mpi4py/|src/mpi4py/|deepspeed/comm/|deepspeed/elasticity"
    r"|jax/experimental/multihost_utils|jax/_src/distributed|ray/|monarch/|nvidia_resiliency_ext/|torchft/|deep_ep/|nixl\w{0,12}/|mooncake/|lmcache/|zmq/|grpc/|etcd\w{0,4}/"
    r"|orbax/checkpoint/[\w/]{0,80}multihost|orbax/checkpoint/utils|vllm/(?:v1/engine|v1/executor|executor|distributed)|sglang/srt/(?:distributed|managers)"
    r"|multiprocessing/(?:connection|managers|queues|spawn|synchronize)|asyncio/|concurrent/futures/|accelerate/utils/operations|transformer_engine/\w{1,40}/(?:distributed|module/base)"
    r"|tensorflow/python/distribute|pynccl\w{0,20}|cupyx?/(?:cuda/nccl|distributed)|socket\.py|ssl\.py"
    # of any package: what its name says talks to somebody
    r"|[\w/.-]{0,200}(?:client|server|rpc|remote|serving|transport|communicat|messag)\w{0,24}\.py\", line)"
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
# Memory of another process is opened here: of the device (CUDA IPC), or shared by its name
_OPENED = re.compile(
    r"torch/multiprocessing/reductions|multiprocessing/(?:shared_memory|resource_sharer)|custom_all_?reduce|symm_?mem\w{0,20}|_symmetric_memory|cuda_ipc|ipc_(?:handle|tensor|mem)"
)
_CALL = re.compile(
    r"\b(?:all_?reduce|all_?gather\w{0,12}|reduce_?scatter\w{0,12}|all_?to_?all\w{0,8}|broadcast(?:_object_list)?|barrier|monitored_barrier|sync_global\w{0,12}|process_allgather"
    r"|init_process_group|wait_at_barrier|isend|irecv|TCPStore|ray\.get|blocking_key_value_get)\(",
    re.IGNORECASE,
)
# In the job's own code: a call of something that somebody else has to end
_AWAITS = re.compile(
    r"\.(?:wait|result|join|recv\w{0,12}|send\w{0,12}|sync\w{0,12}|exchange|rendezvous|connect)\("
)
# In the job's own code: a line that handles what other ranks have sent, or what a store holds
_RECEIVED = re.compile(
    r"\b\w{0,40}(?:received|gathered|recvd?_|_recvd?|from_ranks?|from_peers?|by_rank|per_rank|of_ranks?|all_ranks|peer_)\w{0,40}"
    r"|\[\w{0,40}(?:src|source|peer|remote|other|sender)_?(?:rank|id)?\w{0,10}\]"
    r"|\b(?:i?bcast|broadcast_obj\w{0,12}|sendrecv\w{0,8}|alltoallw?v?)\(|\bcomm\w{0,12}\.(?:i?m?recv|i?gather|i?scatter|i?allgather)v?\("  # mpi4py
    r"|\b\w{0,20}store\.(?:get|multi_get|wait)\(|\bkv\w{0,12}\.get\(|key_value_(?:try_)?get\w{0,12}\(",
    re.IGNORECASE,
)
_RAISED = re.compile(r"(?:^|\W)(?:raise|assert) (?=\S)")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/lib64/python\d")


class RaisedIn(NamedTuple):
    """Where an exception was raised.

    `group`: in code through which ranks communicate, or in a call of it. `unknown`: in an installed
    package of which nothing is known. `own_raise`: by a `raise` in the job's own code. `stated`: by
    a `raise` or `assert` anywhere, so that a person has written its words. `source`: that line.
    `opened`: where memory that another process has shared is opened. `of_received`: below a line of the job's own code that handles
    what other ranks have sent.
    """

    group: bool = False
    unknown: bool = False
    own_raise: bool = False
    stated: bool = False
    source: str = ""
    opened: bool = False
    of_received: bool = False


NOWHERE = RaisedIn()


def raised_in(lines: Sequence[str], start: int, end: int) -> RaisedIn:
    """Where an exception was raised, by the innermost frame of its traceback; NOWHERE without a frame.

    `lines[start]` is the traceback's first line, `lines[end]` the error.
    """
    at = next((at for at in range(end - 1, start, -1) if 'File "' in lines[at]), None)
    if at is None:
        return NOWHERE
    source = lines[at + 1] if at + 1 < end else ""
    raised = _RAISED.search(source) is not None
    installed = _INSTALLED.search(lines[at]) is not None
    called = not raised and bool(_CALL.search(source) or (not installed and _AWAITS.search(source)))
    return RaisedIn(
        group=called or _CODE.search(lines[at]) is not None,
        unknown=_OF_UNKNOWN.search(lines[at]) is not None,
        own_raise=raised and not installed,
        stated=raised,
        source=source.strip() if raised else "",
        opened=_OPENED.search(f"{lines[at]}\n{source}") is not None,
        of_received=_RECEIVED.search(_own_source(lines, start, end)) is not None,
    )


def _own_source(lines: Sequence[str], start: int, end: int) -> str:
    """The line of source of the innermost frame that is of no installed package; "" where it is not shown, or is a `raise`."""
    frames = (at for at in range(end - 1, start, -1) if 'File "' in lines[at] and not _INSTALLED.search(lines[at]))  # fmt: skip
    at = next(frames, end)
    source = lines[at + 1] if at + 1 < end else ""
    return "" if _RAISED.search(source) else source
