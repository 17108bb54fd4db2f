"""Which GPUs a process may use, by its environment: CUDA_VISIBLE_DEVICES within NVIDIA_VISIBLE_DEVICES.

Pure.

CUDA reads its list up to the first word that names no GPU, and uses none where one occurs twice.
Numbers count in PCI order where CUDA_DEVICE_ORDER says so or all GPUs are of one model; otherwise
the fastest comes first, which is not known here. A device cgroup or a container may narrow the GPUs
without a trace in the environment: CUDA opens all GPUs that it may use, so open device files show
it.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug.hardware.gpu.readings import GpuReading

CUDA, CONTAINER, ORDER = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
VARIABLES = (CUDA, CONTAINER, ORDER)
MAX_WORDS = 1024


class VisibleDevice(MeasuredData, frozen=True, kw_only=True):
    """A GPU, or a MIG slice of one, that a process may use."""

    uuid: str
    index: int  # as the driver counts
    instance: str = ""  # uuid of the MIG slice


class VisibleDevices(MeasuredData, frozen=True, kw_only=True):
    """The GPUs that a process may use, in its own numbering.

    `source`: the variable that restricts them; `problem`: what is wrong with its value.
    """

    devices: tuple[VisibleDevice, ...] = ()
    source: str = ""  # the variable that decided; "" where none restricts it
    problem: str = ""


def visible_gpus(
    environment: Mapping[str, str], gpus: Sequence[GpuReading], minors: Sequence[int] | None
) -> tuple[VisibleDevices, ...]:
    """The GPUs that a process may use: one entry for each way of numbering them that fits its open device files; never empty.

    `minors`: the N of each open /dev/nvidiaN; None where they cannot be read, so that only the
    environment is used.
    """
    by_environment = visible(environment, gpus)
    if minors is None or all(gpu.minor is None for gpu in gpus):
        return (by_environment,)
    opened = _opened(gpus, minors)
    if not opened:
        return (VisibleDevices(problem="it has GPUs open that are not seen here"),)
    here = {gpu.uuid for gpu in opened}
    fitting = [one for one in (by_environment, _inside(environment, opened)) if _fits(one, here)]
    if fitting:
        return tuple(fitting)
    if not by_environment.devices:
        return (by_environment,)
    return (
        VisibleDevices(
            problem=f"{by_environment.source or 'its environment'} names GPUs that it has not open"
        ),
    )


def _opened(gpus: Sequence[GpuReading], minors: Sequence[int]) -> tuple[GpuReading, ...]:
    """The GPUs behind these devices. One that is lost has no number any more: it counts where as many are left over."""
    minors_here = {gpu.minor for gpu in gpus}
    left = len(set(minors) - minors_here)
    lost = sum(gpu.minor is None for gpu in gpus)
    if left not in (0, lost):
        return ()
    return tuple(gpu for gpu in gpus if gpu.minor in minors or (gpu.minor is None and left))


def _inside(environment: Mapping[str, str], opened: Sequence[GpuReading]) -> VisibleDevices:
    """Counted among the open GPUs alone, because CUDA sees no others, whatever has restricted them."""
    if ":" in environment.get(CONTAINER, ""):
        return VisibleDevices()  # slices by number: they are not counted as GPUs are
    devices = visible({k: v for k, v in environment.items() if k != CONTAINER}, opened)
    return msgspec.structs.replace(devices, source=devices.source or "its open GPUs")


def _fits(one: VisibleDevices, here: Collection[str]) -> bool:
    return bool(one.devices) and all(device.uuid in here for device in one.devices)


def visible(environment: Mapping[str, str], gpus: Sequence[GpuReading]) -> VisibleDevices:
    """The GPUs that a process with this environment sees as 0, 1, 2, ….

    `gpus`: all GPUs of the node.
    """
    base, variable = _in_container(environment.get(CONTAINER), gpus)
    text = environment.get(CUDA)
    if text is None:
        problem = (
            ""
            if base is not None
            else f"{_show(CONTAINER, environment[CONTAINER])} names GPUs that we cannot follow"
        )
        return VisibleDevices(devices=base or (), source=variable, problem=problem)
    words = [word.strip() for word in text.split(",")][:MAX_WORDS]
    found: list[VisibleDevice] = []
    problem = ""
    for word in words:
        one = _named(word, base, gpus)
        if one is None:
            problem = (
                ""
                if word in ("", "-1", "NoDevFiles")
                else f"{_show(CUDA, text)} names no GPU by {clean(word, 60)!r}"
            )
            break
        found.append(one)
    if len({(one.uuid, one.instance) for one in found}) < len(found):
        return VisibleDevices(
            source=CUDA, problem=f"{_show(CUDA, text)} names a GPU twice: CUDA uses none"
        )
    if not problem and _order_unknown(words, environment, gpus):
        problem = f"{ORDER} is not PCI_BUS_ID and the GPUs differ: which is {clean(words[0], 20)} is not known"
        return VisibleDevices(source=CUDA, problem=problem)
    return VisibleDevices(devices=tuple(found), source=CUDA, problem=problem)


def _in_container(
    text: str | None, gpus: Sequence[GpuReading]
) -> tuple[tuple[VisibleDevice, ...] | None, str]:
    """The GPUs that the container has, in the driver's order; all where nothing narrows them.

    None: said in a way that cannot be followed. `void` leaves it to others who gets which (CDI), and the numbers of a list
    mean nothing to an agent that sees other GPUs than the runtime did.
    """
    everything = tuple(whole_gpu(gpu) for gpu in gpus)
    if text is None or text.strip() == "all":
        return everything, ""
    words = [word.strip() for word in text.split(",")][:MAX_WORDS]
    named = [_named(word, everything, gpus) for word in words]
    if None in named:
        return None, CONTAINER
    chosen = {(one.index, one.uuid, one.instance): one for one in named if one is not None}
    return tuple(chosen[key] for key in sorted(chosen)), CONTAINER


def _named(
    word: str, base: Sequence[VisibleDevice] | None, gpus: Sequence[GpuReading]
) -> VisibleDevice | None:
    """The GPU of one word: a number, a uuid or its beginning, a MIG slice. Without a base numbers mean nothing."""
    if word.isascii() and word.isdigit():
        number = int(word[:6])
        return base[number] if base is not None and number < len(base) else None
    if word.startswith("MIG-"):
        return _slice(word, gpus)
    some = base if base is not None else [whole_gpu(gpu) for gpu in gpus]
    fitting = [one for one in some if word.startswith("GPU-") and one.uuid.startswith(word)]
    return fitting[0] if len(fitting) == 1 else None


def _slice(word: str, gpus: Sequence[GpuReading]) -> VisibleDevice | None:
    """`MIG-<uuid>`, or `MIG-GPU-<uuid>/1/0` as drivers before 470 name it."""
    for gpu in gpus:
        old = word.removeprefix("MIG-").partition("/")[0]
        if word in gpu.mig_instances or (gpu.uuid and old == gpu.uuid):
            return VisibleDevice(uuid=gpu.uuid, index=gpu.index, instance=word)
    return None


def _order_unknown(
    words: Sequence[str], environment: Mapping[str, str], gpus: Sequence[GpuReading]
) -> bool:
    by_number = any(word.isascii() and word.isdigit() for word in words)
    return by_number and not in_pci_order(environment, gpus)


def in_pci_order(environment: Mapping[str, str], gpus: Sequence[GpuReading]) -> bool:
    """Whether CUDA numbers these GPUs as the driver does: by CUDA_DEVICE_ORDER=PCI_BUS_ID, or because all are of one model."""
    return environment.get(ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2


def whole_gpu(gpu: GpuReading) -> VisibleDevice:
    """A GPU that a process sees as a whole, and not as one of its MIG instances."""
    return VisibleDevice(uuid=gpu.uuid, index=gpu.index)


def _show(name: str, text: str) -> str:
    return f"{name}={clean(text, 60)}"
