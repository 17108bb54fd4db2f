"""Bus bandwidth over payload as a picture; matplotlib is an extra."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from mldebug.errors import ToolError
from mldebug.probing.collectives import Collective


def check_matplotlib() -> None:
    """Raise ToolError before anything is measured where no picture could be drawn."""
    if find_spec("matplotlib") is None:
        raise ToolError("--plot needs matplotlib", "pip install matplotlib, or take --csv")


def plot(results: Sequence[Collective], path: Path, title: str) -> None:
    """Write one line for each op; the kind of file is told by its name."""
    figures = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for op in dict.fromkeys(one.op for one in results if one.busbw_bytes_per_second):
        points = sorted(
            (one.bytes, one.busbw_bytes_per_second / 1e9) for one in results if one.op == op
        )
        axes.plot([size for size, _ in points], [speed for _, speed in points], "o-", label=op)
    axes.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title=title)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path)
