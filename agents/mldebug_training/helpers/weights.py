"""Writes a description of this rank's weights, one line each, so that `diff` finds ranks and steps whose weights differ.

A hash stands for the bytes of each weight: equal weights give equal files, and 10 GB become some kilobytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.overflow.measuring import Measures
from mldebug_training.helpers.overflow.modules import named
from mldebug_training.helpers.rank_print import own_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def dump_weights(model: Any, folder: str, tag: str, **coordinates: int) -> str:
    """Write one line for each parameter and buffer of a model into a text file of this rank, to compare ranks or runs with `diff`.

    The file is FOLDER/weights-TAG.txt, with the `coordinates` that are given, and the number of the rank where torch.distributed
    or its launcher gives one, in its name: `dump_weights(model, folder, "a", pp=11, tp=1)` on rank 369 writes
    weights-a-pp11-tp1-rank369.txt. A line holds name, type, shape, smallest and largest absolute number, and BLAKE2b-128 of the
    bytes; of a tensor that is sharded, of this rank's part. Returns the path, "" where the file could not be written; never
    raises. Waits for the GPU.
    """
    try:
        rank = own_rank()
        parts = coordinates if rank is None else {**coordinates, "rank": rank}
        name = "-".join(["weights", tag, *(f"{one}{number}" for one, number in parts.items())])
        path = os.path.join(folder, f"{name}.txt")
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.writelines(_lines(model))
        os.replace(f"{path}.new", path)
        return path
    except Exception as error:
        pass_on(error)
        return ""


def _lines(model: Any) -> Iterator[str]:
    written = set()
    for module_name, module in named(model):
        here = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in here:
            if id(tensor) not in written:
                written.add(id(tensor))
                yield _line(name if module is model else f"{module_name}.{name}", tensor)


def _line(name: str, tensor: Any) -> str:
    measures = Measures()
    found = measures.put(tensor)
    measures.fetch()
    numbers = found.note or f"{found.least:.9e} {found.most:.9e}"
    about = f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"
    return f"{name} {about} {numbers} {_hash(tensor)}\n"


def _hash(tensor: Any) -> str:
    torch = sys.modules["torch"]
    if tensor.device.type == "meta":
        return "-"
    with torch.no_grad():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        here = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    size = here.numel()
    data = (ctypes.c_char * size).from_address(here.data_ptr()) if size else b""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
