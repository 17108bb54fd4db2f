"""How many series a node has in Prometheus, and how large a scrape is: a real agent, light jobs, two recorded H200s."""

import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.table import Row, show
from fakenvml.library import FakeNvml
from processes.agent.light import light_job
from processes.harness import free_port, wait_for
from processes.incidents.watching import RunningAgent, settings, watching

RANKS = 8
GPUS = 2


class Scrape:
    """One answer of the door for Prometheus."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            self.text: bytes = answer.read()
        self.series = sum(bool(line) and not line.startswith(b"#") for line in self.text.splitlines())  # fmt: skip

    def __str__(self) -> str:
        return f"{self.series} series, {len(self.text) / 1e3:.0f} kB"


@contextmanager
def agent(folder: Path, more: Mapping[str, str]) -> Iterator[tuple[RunningAgent, int]]:
    """A real one, and the port that Prometheus scrapes."""
    port = free_port()
    config = settings(folder, stall="{interval: 1s}", listen=f"127.0.0.1:{port}")
    with watching(folder, config, more=more) as one:
        yield one, port


def steps(one: RunningAgent, runs: int) -> bool:
    """Do so many runs tell their steps?"""
    snap = one.snapshot()
    return snap is not None and len([run for run in snap.runs if run.step]) == runs


def settled(port: int) -> Scrape:
    """A scrape after which two more have as many series: the agent has taken up all."""
    last, same = Scrape(port), 0
    while same < 2:
        time.sleep(5)
        now = Scrape(port)
        same = same + 1 if now.series == last.series else 0
        last = now
    return last


def of_runs(folder: Path) -> Iterator[Row]:
    """Without a run, with one and with two."""
    with agent(folder, {}) as (one, port):
        bare = settled(port)
        yield Row("a node without GPUs and runs", str(bare))
        with light_job(folder / "job1", RANKS):
            wait_for("a run", lambda: steps(one, 1))
            first = settled(port)
            yield Row(f"the same with a run of {RANKS} ranks", str(first))
            with light_job(folder / "job2", RANKS):
                wait_for("two runs", lambda: steps(one, 2))
                second = settled(port)
        yield Row(f"each more run of {RANKS} ranks", f"{second.series - first.series} series")


def of_gpus(folder: Path) -> Iterator[Row]:
    """With two GPUs that somebody else uses."""
    (folder / "nvml").mkdir()
    fake = FakeNvml(folder / "nvml", "training")
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    with agent(folder, {}) as (_, port):
        bare = settled(port)
    with agent(folder, more) as (one, port):
        wait_for("a full read", lambda: (snap := one.snapshot()) is not None and snap.gpus, 60)
        full = settled(port)
        yield Row("each H200", f"{(full.series - bare.series) / GPUS:.0f} series")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        show("series", [*of_runs(Path(one)), *of_gpus(Path(other))])


if __name__ == "__main__":
    main()
