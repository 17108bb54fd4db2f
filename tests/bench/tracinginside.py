"""One load under one tracer, in a process of its own: python tracinginside.py LOAD TRACER FOLDER; prints seconds of CPU and bytes.

Loads: calls, text, torch. Tracers: see TRACERS. What a tracer saves at its end is not in its time.
"""

import contextlib
import datetime
import json
import linecache
import os
import re
import sys
import time
import trace as standard
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

TURNS = 3
SMALL = 1 << 20


def fib(number: int) -> int:
    """Nothing but calls."""
    return number if number < 2 else fib(number - 1) + fib(number - 2)


def calls() -> None:
    """Call-heavy pure Python."""
    fib(20)


def text() -> None:
    """JSON and regular expressions, most of it in C."""
    facts = {"steps": [{"step": one, "loss": 1 / (one + 1)} for one in range(200)]}
    for _ in range(15):
        found = json.loads(json.dumps(facts))
        line = " ".join(f"step {one['step']} loss {one['loss']:.4f}" for one in found["steps"])
        for step in re.finditer(r"step (\d+) loss ([0-9.]+)", line):
            int(step.group(1))


def torch_loop() -> Callable[[], None]:
    """A training of a small network on one core."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = torch.randn(128, 512), torch.randint(0, 10, (128,))

    def train_step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    def load() -> None:
        for _ in range(40):
            train_step()

    return load


class Nicer(standard.Trace):
    """A text tracer as people write them: a frame line, then each line with time and source."""

    def globaltrace_lt(self, frame: Any, why: str, arg: Any) -> Any:
        if why != "call":
            return None
        name = frame.f_globals.get("__file__")
        if not name:
            return None
        code = frame.f_code
        print(f"        {name}:{code.co_firstlineno} {code.co_name}")
        return self.localtrace

    def localtrace_trace_and_count(self, frame: Any, why: str, arg: Any) -> Any:
        if why == "line":
            name, line = frame.f_code.co_filename, frame.f_lineno
            self.counts[name, line] = self.counts.get((name, line), 0) + 1
            gone = str(datetime.timedelta(seconds=time.time() - BEGAN)).split(".")[0]
            source = linecache.getline(name, line)
            print(f"{gone} {os.path.basename(name)}:{line:>6}: {source}", end="")
        return self.localtrace


@contextlib.contextmanager
def text_tracer(kind: Any, file: TextIO) -> Iterator[None]:
    """Into a file, as all of them are used."""
    tracer = kind(trace=1, count=1)
    with contextlib.redirect_stdout(file):
        sys.settrace(tracer.globaltrace)
        try:
            yield
        finally:
            sys.settrace(None)


@contextlib.contextmanager
def viztracer(path: Path) -> Iterator[None]:
    """As it is without options, but for its messages."""
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, output_file=str(path), tracer_entries=1_000_000)
    tracer.start()
    yield
    tracer.stop()
    began.append(time.process_time())
    tracer.save()
    saved.append(time.process_time() - began.pop())


@contextlib.contextmanager
def ours(path: Path, *include: str, **more: Any) -> Iterator[None]:
    """The ring."""
    from mldebug_training.tracing.trace import trace

    with trace(*include, ring=str(path), size=64 << 20, **more) as tracer:
        yield
        assert not tracer.why, tracer.why
        engines.append(tracer.engine)


def tracers(folder: Path, file: TextIO) -> dict[str, Any]:
    ring, every = folder / "out.ring", "everything"
    return {
        "none": contextlib.nullcontext,
        "trace.Trace": lambda: text_tracer(standard.Trace, file),
        "text": lambda: text_tracer(Nicer, file),
        "viztracer": lambda: viztracer(folder / "out.json"),
        "calls": lambda: ours(ring, every),
        "lines": lambda: ours(ring, every, lines=True),
        "filtered": lambda: ours(ring, "uninstalled"),
        "calls-python": lambda: ours(ring, every, native=False),
    }


BEGAN = time.time()
engines: list[str] = []
saved: list[float] = []
began: list[float] = []


def main() -> None:
    """Measure the quickest of some turns."""
    name, tracer, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    load = torch_loop() if name == "torch" else {"calls": calls, "text": text}[name]
    load()
    spans = []
    with (folder / "out.txt").open("w") as file, tracers(folder, file)[tracer]():
        for _ in range(TURNS):
            start = time.process_time()
            load()
            spans.append(time.process_time() - start)
    size = sum(one.stat().st_size for one in folder.iterdir())
    print(json.dumps({"seconds": min(spans), "bytes": size, "engine": engines, "saved": saved}))


if __name__ == "__main__":
    main()
