"""What is not on a node as it was when a job last ended well there. Pure."""

from collections.abc import Mapping

from mldebug.jobs.run_records.model import NOT_SET, RunRecord
from mldebug.probes.preflight.findings import SAME, NodeFindings

MOST = 200  # sentences of one node

_BY_LAUNCHERS = frozenset(
    {
        *("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"),
        *("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_PRELOAD"),
    }
)
"""Variables that torchrun, srun, Accelerate or `mldebug run` set for ranks: where a check is started they are not set yet."""


def changes_since(good: RunRecord, now: NodeFindings) -> tuple[str, ...]:
    """What differs from the run of the job that ended well, as sentences: `since the last good run 2c7d1f: numpy was 2.0.0, is 2.1.0`."""
    tables = (
        (good.machine, now.facts, good.machine.keys() & now.facts.keys()),
        (good.packages, now.packages, _comparable_packages(good.packages, now.packages)),
        (good.environment, now.environment, _comparable_variables(good, now)),
    )
    found = [
        f"since the last good run {good.run}: {name} was {was}, is {is_}"
        for before, after, names in tables
        for name in sorted(names)
        if before and after
        and not _is_same(name, was := before.get(name, NOT_SET), is_ := after.get(name, NOT_SET))
    ]  # fmt: skip
    return tuple(found[:MOST])


def _comparable_packages(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Those that both have, and those that are gone. Of the run only one folder was read: what it lacks may have been in another."""
    gone = before.keys() - after.keys() - set(SAME) if "torch" in after else set()
    return (before.keys() & after.keys()) | gone


def _comparable_variables(good: RunRecord, now: NodeFindings) -> set[str]:
    """Without those that only the ranks' launcher has set, and, of a record that is a part, those that it may have lacked."""
    before, after = good.environment.keys(), now.environment.keys()
    came = set() if "environment" in good.partial else after - before
    return (before & after) | came | (before - after - _BY_LAUNCHERS)


def _is_same(name: str, was: str, is_: str) -> bool:
    """Of Python a run knows the first two numbers; PyTorch names its own build (`2.8.0+cu128`), its package on PyPI does not."""
    if name == "python":
        return f"{is_}.".startswith(f"{was}.")
    if name == "torch" and ("+" not in was or "+" not in is_):
        return was.partition("+")[0] == is_.partition("+")[0]
    return was == is_
