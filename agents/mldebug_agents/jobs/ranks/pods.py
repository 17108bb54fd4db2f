"""The pods of a job, as the training operators of Kubernetes call them: all names follow from the first and their number.

PyTorchJob: `job-master-0`, `job-worker-0` …; TrainJob, JobSet, Indexed Job: `job-node-0-0.job`, `job-node-0-1.job` … Pure.
"""

import re
from collections.abc import Mapping

MAX_PODS = 2048
FIRST = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MASTER_ADDR")  # torchrun rewrites the last
_HOST = r"([a-z0-9][a-z0-9-]{0,200})"
_DOMAIN = r"((?:\.[a-z0-9][a-z0-9.-]{0,200})?)"
_MASTER = re.compile(rf"{_HOST}-master-0{_DOMAIN}")
_FIRST = re.compile(rf"{_HOST}-0{_DOMAIN}")


def pods(environ: Mapping[str, str], count: int) -> str:
    """So many pods in the form of a scheduler's list; "" outside of Kubernetes, and where the names tell nothing."""
    if "KUBERNETES_SERVICE_HOST" not in environ or not 1 < count <= MAX_PODS:
        return ""
    hosts = (environ.get(name, "").partition(":")[0] for name in FIRST)
    return next(filter(None, (_from(host, count) for host in hosts)), "")


def _from(host: str, count: int) -> str:
    if found := _MASTER.fullmatch(host):
        job, domain = found[1], found[2]
        return f"{job}-master-0{domain},{job}-worker-{_numbers(count - 1)}{domain}"
    found = _FIRST.fullmatch(host)
    return f"{found[1]}-{_numbers(count)}{found[2]}" if found else ""


def _numbers(count: int) -> str:
    return "0" if count == 1 else f"[0-{count - 1}]"
