"""What the type of an exception says about whose failure it is, as data. Pure.

| kind | which | what it shows |
|---|---|---|
| LOCAL | a wrong name, type, key, index, file, shape of data, memory | the rank's own failure, whatever words its text has |
| STATED | `ValueError`, `AssertionError` | its own, unless the text says that a wait was in vain, that another failed, or that ranks differ |
| SYSTEM | `OSError` and those below it | its own with a number of files, memory or ports, or where it names a path or an address of the web; else unclear |
| SERVICE | of clients of services outside of the job (object stores, hubs, trackers) | its own, unless it names a bare address, where a rank may serve |
| HTTP | of clients of any server | its own with an address of the web; else unclear: ranks ask each other, too |
| RELAY | what only passes on that others failed | a victim |
| SHARED | of libraries through which ranks talk | never its own |
| GENERAL | all others: `RuntimeError`, `Exception`, C++ types, a library's own | its own only where neither its words nor the innermost frame has to do with others |
"""

import re
from enum import StrEnum


class ErrorType(StrEnum):
    """The kind of an exception's type, which decides whose failure it shows."""

    LOCAL = "local"
    STATED = "stated"
    SYSTEM = "system"
    SERVICE = "service"
    HTTP = "http"
    RELAY = "relay"
    SHARED = "shared"
    GENERAL = "general"


_TYPE = re.compile(
    r"\s{0,8}(?P<type>[A-Za-z_](?:[\w.]|::){0,200}(?:\([\w.]{1,80}\))?)(?::|\s*(?:\n|$))"
)
_LOCAL = re.compile(
    r"(?:Arithmetic|ZeroDivision|Overflow|FloatingPoint|Attribute|Lookup|Index|Key|Import|ModuleNotFound|Name|UnboundLocal|Type|Syntax"
    r"|Indentation|Recursion|NotImplemented|Memory|Unicode\w{0,12}|FileNotFound|FileExists|Permission|IsADirectory|NotADirectory|BlockingIO)Error"
    r"|std::(?:bad_alloc|bad_array_new_length|out_of_range|length_error)|StopIteration|StopAsyncIteration|torch\.(?:cuda\.)?OutOfMemoryError|subprocess\.TimeoutExpired|pickle\.\w+|_?pickle\.\w+|struct\.error|zlib\.error"
    r"|json\.decoder\.\w+|(?:yaml|omegaconf|hydra|pydantic|pydantic_core|safetensors|safetensors_rust|zipfile|tarfile|lzma|PIL|numpy|pandas|pyarrow|h5py|lmdb|sqlite3|tomllib|argparse"
    r"|torch\._dynamo|torch\._inductor|triton|webdataset|datasets|tokenizers|sentencepiece|pyo3_runtime)\.[\w.]+"
)
_STATED = re.compile(r"ValueError|AssertionError")
_SYSTEM = re.compile(
    r"(?:(?:asyncio|socket|concurrent\.futures|multiprocessing|ssl)\.)?"
    r"(?:OS|IO|EOF|Timeout|Connection|ConnectionReset|ConnectionRefused|ConnectionAborted|BrokenPipe|Interrupted|IncompleteRead)Error"
    r"|(?:socket|asyncio|ssl)\.[\w.]+|asyncio\.exceptions\.[\w.]+|_?queue\.\w+"
)
_SERVICE = re.compile(
    r"(?:botocore|boto3|s3fs|gcsfs|fsspec|google\.(?:api_core|auth|cloud)|azure|huggingface_hub|wandb|mlflow|comet_ml"
    r"|neptune|openai|anthropic|pymongo|psycopg2?|sqlalchemy|clearml|swanlab|smart_open|oss2|tos|minio)\.[\w.]+"
)
_HTTP = re.compile(r"(?:requests|urllib3|urllib|http|httpx|httpcore|aiohttp|websockets)\.[\w.]+")
_RELAY = re.compile(
    r"(?:[\w.]*\.)?(?:RayTaskError(?:\([\w.]+\))?|TrainingFailedError|TrainingWorkerError|WorkerGroupError|ControllerError|ChildFailedError|ProcessRaisedException"
    r"|ProcessExitedException|ActorError|ActorDiedError|SupervisionError|EngineDeadError|EngineGenerateError|MeshFailure|WorkerCrashedError|WorkerHealthCheckFailedError)"
)
_SHARED = re.compile(
    r"(?:ray|monarch|nvidia_resiliency_ext|torchft|vllm|sglang|grpc|zmq|mpi4py|etcd3?|kazoo|dask|distributed|nixl\w*|mooncake|lmcache|horovod|ucxx|ucp|redis|deep_ep"
    r"|torch\.distributed|torchelastic|Pyro[45]|torch\.multiprocessing)\.[\w.]+"
)
_TABLE: tuple[tuple[ErrorType, re.Pattern[str]], ...] = (
    (ErrorType.RELAY, _RELAY),
    (ErrorType.LOCAL, _LOCAL),
    (ErrorType.STATED, _STATED),
    (ErrorType.SYSTEM, _SYSTEM),
    (ErrorType.SERVICE, _SERVICE),
    (ErrorType.HTTP, _HTTP),
    (ErrorType.SHARED, _SHARED),
)
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|_")


def name_of_type(words: str) -> str:
    """The name of the exception type that a text begins with; "" for none."""
    found = _TYPE.match(words)
    return found["type"] if found else ""


def type_of(name: str) -> ErrorType:
    """The kind of an exception, by its name with or without its module; GENERAL for a name that is not known."""
    return next((kind for kind, pattern in _TABLE if pattern.fullmatch(name)), ErrorType.GENERAL)


def spaced(text: str) -> str:
    """Split the names in a text into words (`nixlRemoteDisconnectError` -> `nixl Remote Disconnect Error`), so that patterns find them."""
    return _HUMPS.sub(" ", text)
