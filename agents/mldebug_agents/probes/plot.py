"""Bus bandwidth over payload as a picture; matplotlib is an extra."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mldebug.core.errors import ToolError, UsageError
from mldebug.core.units import format_size
from mldebug.probes.collectives import Collective

MOST_NAMED = 12  # payloads below the picture


def check_matplotlib() -> None:
    """Raise ToolError before anything is measured where no picture could be drawn."""
    if find_spec("matplotlib") is None:
        raise ToolError("--plot needs matplotlib", "pip install matplotlib, or take --csv")


def check_picture(path: Path) -> None:
    """Raise UsageError for a kind of picture that cannot be drawn."""
    known = import_module("matplotlib.backend_bases").FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise UsageError(
            f"{path} cannot be drawn: there is no kind of picture {path.suffix}",
            "name it .png, .svg or .pdf",
        )


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
    axes.set(xlabel="payload", ylabel="bus bandwidth, GB/s", title=title)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        _name_payloads(axes, sorted({one.bytes for one in results if one.bytes}))
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path)


def _name_payloads(axes: Any, sizes: Sequence[int]) -> None:
    """As the table does, and some of them where there are many."""
    axes.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // MOST_NAMED)]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.set_xticks([], minor=True)
