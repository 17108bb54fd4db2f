"""Which GPUs a process may use, by its environment: CUDA_VISIBLE_DEVICES inside NVIDIA_VISIBLE_DEVICES. Pure.

CUDA reads its list up to the first word that names no GPU, and uses none where one stands twice. A number counts in PCI order
where CUDA_DEVICE_ORDER says so or all GPUs are of one kind, else the fastest comes first, which we do not know.
"""

from collections.abc import Mapping, Sequence

from mldebug.gpus.readings import GpuReading
from mldebug.model import Noun
from mldebug.redact import clean

CUDA, CONTAINER, ORDER = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
VARIABLES = (CUDA, CONTAINER, ORDER)
MAX_WORDS = 1024


class Visible(Noun, frozen=True, kw_only=True):
    """One GPU, or one slice of it."""

    uuid: str
    index: int  # as the driver counts
    instance: str = ""  # uuid of the MIG slice


class Sight(Noun, frozen=True, kw_only=True):
    """What a process may use, in its own order, and what is odd about how that is said."""

    devices: tuple[Visible, ...] = ()
    told_by: str = ""  # the variable that decided; "" where none restricts it
    problem: str = ""


def visible(environment: Mapping[str, str], gpus: Sequence[GpuReading]) -> Sight:
    """The GPUs that a process with this environment uses as 0, 1, 2 …; `gpus` are all that the agent sees."""
    base, told_by = _in_container(environment.get(CONTAINER), gpus)
    text = environment.get(CUDA)
    if text is None:
        return Sight(devices=base, told_by=told_by)
    words = [word.strip() for word in text.split(",")][:MAX_WORDS]
    found: list[Visible] = []
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
        return Sight(told_by=CUDA, problem=f"{_show(CUDA, text)} names a GPU twice: CUDA uses none")
    if not problem and _order_unknown(words, environment, gpus):
        problem = f"{ORDER} is not PCI_BUS_ID and the GPUs differ: which is {clean(words[0], 20)} is not known"
        return Sight(told_by=CUDA, problem=problem)
    return Sight(devices=tuple(found), told_by=CUDA, problem=problem)


def _in_container(text: str | None, gpus: Sequence[GpuReading]) -> tuple[tuple[Visible, ...], str]:
    """The GPUs that the container has, in the driver's order; all where it is not said, or said in a way we cannot follow.

    An agent in the same container sees no others: then the numbers mean nothing here.
    """
    everything = tuple(_whole(gpu) for gpu in gpus)
    if text is None or text.strip() in ("", "all", "void", "none"):
        return everything, ""
    words = [word.strip() for word in text.split(",")][:MAX_WORDS]
    named = [_named(word, everything, gpus) for word in words]
    if None in named:
        return everything, ""
    chosen = {(one.index, one.uuid, one.instance): one for one in named if one is not None}
    return tuple(chosen[key] for key in sorted(chosen)), CONTAINER


def _named(word: str, base: Sequence[Visible], gpus: Sequence[GpuReading]) -> Visible | None:
    """The GPU of one word: a number, a uuid or its beginning, a MIG slice."""
    if word.isascii() and word.isdigit():
        number = int(word[:6])
        return base[number] if number < len(base) else None
    if word.startswith("MIG-"):
        return _slice(word, gpus)
    fitting = [one for one in base if word.startswith("GPU-") and one.uuid.startswith(word)]
    return fitting[0] if len(fitting) == 1 else None


def _slice(word: str, gpus: Sequence[GpuReading]) -> Visible | None:
    """`MIG-<uuid>`, or `MIG-GPU-<uuid>/1/0` as drivers before 470 name it."""
    for gpu in gpus:
        old = word.removeprefix("MIG-").partition("/")[0]
        if word in gpu.mig_instances or (gpu.uuid and old == gpu.uuid):
            return Visible(uuid=gpu.uuid, index=gpu.index, instance=word)
    return None


def _order_unknown(
    words: Sequence[str], environment: Mapping[str, str], gpus: Sequence[GpuReading]
) -> bool:
    by_number = any(word.isascii() and word.isdigit() for word in words)
    return by_number and not in_pci_order(environment, gpus)


def in_pci_order(environment: Mapping[str, str], gpus: Sequence[GpuReading]) -> bool:
    """Does a number mean the same to CUDA as to the driver?"""
    return environment.get(ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2


def _whole(gpu: GpuReading) -> Visible:
    return Visible(uuid=gpu.uuid, index=gpu.index)


def _show(name: str, text: str) -> str:
    return f"{name}={clean(text, 60)}"
