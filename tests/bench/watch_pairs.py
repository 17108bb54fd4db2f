"""What the agents of several checkouts cost beside the same 8 idle ranks at the same time: CPU, and memory with all children.

`watch_pairs.py OTHER_CHECKOUT …`: this checkout is the first side. Each round starts an agent of each side, waits until the node is no
news any more, and measures all of them in the same seconds, so that the machine's noise hits them alike. As root it runs in
a pid namespace of its own.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.alone import alone
from bench.table import Row, show
from bench.watch import node

HERE = Path(__file__).resolve().parents[2]
RANKS = int(os.environ.get("MLDEBUG_BENCH_RANKS", "8"))
ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "3"))
YOUNG = float(os.environ.get("MLDEBUG_BENCH_YOUNG_SECONDS", "75"))
SECONDS = float(os.environ.get("MLDEBUG_BENCH_AGENT_SECONDS", "60"))


def started(checkout: Path, folder: Path) -> subprocess.Popen[str]:
    """An agent of this checkout that has found the ranks."""
    state = Path(tempfile.mkdtemp(dir=folder))
    config = state / "config.yaml"
    config.write_text(f"agent: {{state_dir: {state}/state, listen: ''}}\n")
    roots = (checkout, checkout / "agents", checkout / "exporters")
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, roots))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [sys.executable, "-m", "mldebug", "agent", "--config", str(config)]
    agent = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, cwd="/")
    assert agent.stderr is not None
    assert any(f"{RANKS} ranks found" in line for line in agent.stderr), checkout
    threading.Thread(target=list, args=(agent.stderr,), daemon=True).start()
    return agent


def family(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The agent and all its children."""
    own = psutil.Process(agent.pid)
    return [own, *own.children(recursive=True)]


def cpu(pid: int) -> float:
    """Seconds that the threads of a process have run, by the kernel's own account."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def measured(checkouts: list[Path], folder: Path) -> Iterator[tuple[float, float]]:
    """By checkout: its agent's share of a core (percent), and PSS (MiB), each with all children."""
    agents = [started(checkout, folder) for checkout in checkouts]
    time.sleep(YOUNG)
    families = [[one.pid for one in family(agent)] for agent in agents]
    before = [sum(map(cpu, pids)) for pids in families]
    began = time.monotonic()
    time.sleep(SECONDS)
    took = time.monotonic() - began
    used = [sum(map(cpu, pids)) - old for pids, old in zip(families, before, strict=True)]
    sizes = [sum(one.memory_full_info().pss for one in family(agent)) for agent in agents]
    for agent in agents:
        agent.terminate()
        agent.wait(20)
    yield from ((100 * a / took, b / 2**20) for a, b in zip(used, sizes, strict=True))


def rows(checkouts: list[Path]) -> Iterator[Row]:
    """Two for each checkout: the median of the rounds, and each round."""
    rounds: list[list[tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as folder, node(RANKS, Path(folder)):
        for _ in range(ROUNDS):
            rounds.append(list(measured(checkouts, Path(folder))))
    for number, checkout in enumerate(checkouts):
        for what, place, unit in (("CPU", 0, "% of a core"), ("PSS", 1, "MiB")):
            values = [one[number][place] for one in rounds]
            each = ", ".join(f"{value:.2f}" for value in values)
            text = f"{statistics.median(values):.2f} {unit} ({each})"
            yield Row(f"{checkout.name}: {what}", text)


def main() -> None:
    """Measure and show; a side more than once is measured once."""
    checkouts = list(dict.fromkeys([HERE, *(Path(word).resolve() for word in sys.argv[1:])]))
    show(f"agents beside {RANKS} ranks at the same time", rows(checkouts))


if __name__ == "__main__":
    alone()
    main()
