"""Words of functions and files that work on the host: they read, write, parse or talk to a server, and seldom touch a GPU."""

import re

_HOST = frozenset(
    (
        *("read", "reads", "reader", "readline", "write", "writes", "writer", "load", "loads", "loader", "reload", "dump", "save", "saver", "open", "close", "seek", "flush"),
        *("fetch", "fetcher", "download", "downloads", "upload", "uploads", "publish", "request", "requests", "connect", "http", "https", "url", "retry", "ping"),
        *("s3", "gcs", "hdfs", "nfs", "ftp", "remote", "server", "serve", "client", "socket", "redis", "kafka", "db", "database", "sql", "sqlite", "lmdb", "hdf5", "h5"),
        *("file", "files", "filesystem", "folder", "disk", "io", "aio", "nvme", "swap", "mmap", "fsync", "tar", "tariterators", "zip", "parquet", "arrow", "json", "jsonl", "csv", "yaml", "manifest"),
        *("imread", "parse", "parser", "tokenize", "tokenization", "collate", "collator", "data", "dataset", "datasets", "dataloader", "refill", "source", "export"),
        *("sleep", "poll", "lease", "lock", "locks", "acquire", "queue", "semaphore", "mutex", "subprocess", "popen", "spawn", "fork", "shell", "command", "gc", "garbage"),
        *("debugger", "breakpoint", "prompt", "import", "imports", "wandb", "mlflow", "tensorboard", "email", "slack", "notify", "webhook", "login", "auth", "license", "heartbeat", "telemetry"),
    )
)  # fmt: skip
_GPU = frozenset(
    (
        *("gpu", "cuda", "device", "parallel", "tensor", "tensors", "model", "models", "module", "param", "params", "parameters", "weight", "weights", "embedding", "attention"),
        *("loss", "losses", "grad", "grads", "gradient", "gradients", "norm", "item", "step", "forward", "backward", "metric", "logits", "reduce", "gather", "synchronize", "batch"),
    )
)  # fmt: skip
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d?|\d+")
HOST_FILES = re.compile(
    r"torch/(?:hub\.py|testing/.*|utils/(?:data|tensorboard|model_zoo)\b.*|distributed/(?:rpc|elastic|launcher)/.*)"
)
"""Files of PyTorch whose own lines work on the host."""


def works_on_host(function: str, file: str) -> bool:
    """Whether a function works on the host by its name, or by that of its file: `read_shard`, `loadLabels`, `next_row (data.py)`.

    Not where that name speaks of what stands on a GPU: `load_to_gpu`, `data_parallel.py`.
    """
    called, placed = _parts(function), _parts(file)
    if called & _HOST and not called & _GPU:
        return True
    return bool(placed & _HOST) and not (called | placed) & _GPU


def _parts(name: str) -> set[str]:
    return {part.lower() for part in _PART.findall(name)}
