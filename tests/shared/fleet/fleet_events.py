"""Events as agents send them, for the tests of the hub and of its answers."""

from typing import Any

import msgspec

from mldebug.fleet.events import (
    AnyEvent,
    AttemptEvent,
    CheckpointEvent,
    FleetCulprit,
    FleetGpu,
    HardwareFaultEvent,
    IncidentEvent,
    JobEvent,
    NodeHealthEvent,
    ProbeEvent,
    with_id,
)

NOW = 1_795_240_000.0
HOUR, DAY = 3600.0, 86400.0


def gpu(number: int, serial: str = "") -> FleetGpu:
    return FleetGpu(uuid=f"GPU-{number}", serial=serial, index=number, model="NVIDIA H100")


def incident(id: str = "i1", node: str = "n1", blamed: str = "n2", **more: Any) -> AnyEvent:
    """A stall of a job, with a culprit on `blamed`."""
    whole = {
        "node": node, "subject": f"incident/{id}", "at": NOW, "since": NOW, "state": "opened", "incident": id, "job": "train.py", "run": "r1",
        "uid": 1000, "incident_kind": "stall", "verdict": "gpu_fault", "confidence": "high", "sentence": "GPU 3 has fallen off the bus",
        "culprits": (FleetCulprit(kind="gpu", node=blamed, rank=3, reason="Xid 79"),) if blamed else (),
    }  # fmt: skip
    return with_id(IncidentEvent(**(whole | more)))


def fault(node: str = "n1", at: float = NOW, part: FleetGpu | None = None, **more: Any) -> AnyEvent:
    """A critical fault that begins."""
    name = part.uuid if part else ""
    whole = {
        "node": node, "subject": f"health/gpu_ecc/{name}@{at:.0f}", "at": at, "since": at, "state": "began", "component": "gpu_ecc",
        "severity": "critical", "reason_code": "ecc_uncorrected", "sentence": "uncorrectable errors", "gpu": part, "action": "replace",
    }  # fmt: skip
    return with_id(HardwareFaultEvent(**(whole | more)))


def over(event: AnyEvent, at: float) -> AnyEvent:
    """The end of an incident or fault."""
    return with_id(msgspec.structs.replace(event, state="ended", ended=at, at=at))


def health(node: str = "n1", at: float = NOW, *gpus: FleetGpu) -> AnyEvent:
    return with_id(NodeHealthEvent(node=node, subject="node", at=at, gpus=gpus))


def attempt(node: str = "n1", number: int = 0, began: float = NOW, **more: Any) -> AnyEvent:
    whole = {
        "node": node, "subject": f"attempt/r1/{number}", "at": began, "job": "train.py", "run": "r1", "uid": 1000, "user": "ada",
        "script": "train.py", "attempt": number, "began": began,
    }  # fmt: skip
    return with_id(AttemptEvent(**(whole | more)))


def checkpoint(step: int, at: float = NOW, state: str = "complete", **more: Any) -> AnyEvent:
    whole = {
        "node": "n1", "subject": f"checkpoint/{state}/1", "at": at, "job": "train.py", "run": "r1", "uid": 1000, "folder": "/ckpt",
        "series": "step_#", "name": f"step_{step}", "state": state, "step": step, "ended": at,
    }  # fmt: skip
    return with_id(CheckpointEvent(**(whole | more)))


def probe(node: str = "n1", at: float = NOW, **more: Any) -> AnyEvent:
    whole = {"node": node, "subject": "probe/1", "at": at, "op": "all_reduce", "bytes": 1 << 20, "nodes": node, "trend": "steady"}  # fmt: skip
    return with_id(ProbeEvent(**(whole | more)))


def job(node: str = "n1", **more: Any) -> AnyEvent:
    whole = {"node": node, "subject": "job/1", "at": NOW, "job": "train.py", "uid": 1000, "user": "ada", "began": NOW}  # fmt: skip
    return with_id(JobEvent(**(whole | more)))


def one_of_each() -> tuple[AnyEvent, ...]:
    return (incident(), fault(), health(), attempt(), job(), checkpoint(5), probe())
