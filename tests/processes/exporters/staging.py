"""A node where much happens: all that the dashboards show something of, scraped by a real Prometheus with the shipped rules.

What is real: the agent, a job of three ranks with gloo under `mldebug run`, its checkpoints, a FUSE filesystem whose server can be
stopped, a directory that grows, test writes. The history of probes has made-up figures. The agent's GPUs are the fake libnvidia-ml, which serves
recordings of two H200s. MADE, and nothing else, comes from an exposition that our own renderer makes of made-up facts: nobody may
write into the kernel's log here or set quotas of the kernel, and the agent asks a quota tool every five minutes.
"""

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakenvml.library import FakeNvml
from mldebug.hardware.kernel_log.counts import KernelCounts, KindCount
from mldebug.hardware.kernel_log.model import KernelEventKind
from mldebug.probes.history import ProbeRun, ProbeSeries
from mldebug.status.snapshot import RunState
from mldebug.storage.filesystems.state import CollectorState, Measure, StorageState
from mldebug_agents.probes.history.store import add_runs
from mldebug_exporters.prometheus import Prometheus as Renderer
from processes.exporters.test_metrics import Prometheus
from processes.exporters.test_prometheus_rules import rules_at_once, serving
from processes.harness import (
    JOBS,
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    free_port,
    fuse_mount,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from shared.web.snapshots import snapshot

NODE = "n1"  # the instance of the real agent
RANKS = 3
STALL = "{timeout: 15s, interval: 1s}"
MADE = {
    "mldebug_kernel_event_last_timestamp_seconds",
    "mldebug_quota_used_ratio",
    "mldebug_filesystem_quota_used_ratio",
}


class Evaluating(RunningJob):
    """tests/jobs/evaluating.py, with the hook."""

    def start(self) -> None:
        """Under torchrun; it saves into its own folder."""
        (self.folder / "ckpt").mkdir()
        torchrun = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)]
        self._spawn([*torchrun, str(JOBS / "evaluating.py"), str(self.folder / "ckpt")], {})


@dataclass
class Scene:
    """All that plays a part."""

    folder: Path
    agent: RunningAgent
    fake: FakeNvml
    job: RunningJob
    server: Prometheus
    pages: dict[str, str]
    mount: int  # the pid of the FUSE filesystem's server

    @property
    def run(self) -> RunState:
        """The job as the agent knows it; a busy agent may not answer at once."""

        def reported() -> RunState | None:
            snap = self.agent.snapshot()
            return (
                next((run for run in snap.runs if run.name == "evaluating.py"), None)
                if snap
                else None
            )

        found: RunState = wait_for("the agent tells of the job", reported)
        return found

    def has(self, query: str, seconds: float = 150.0) -> None:
        """Wait until a query gives anything."""
        try:
            wait_for(query, lambda: self.server.samples(query), seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.agent.log[-2000:]}\n{self.job.tail()}") from None


# --- what is scraped ---------------------------------------------------------------------------


@contextmanager
def served() -> Iterator[tuple[int, dict[str, str]]]:
    """A port that serves texts by path."""
    table: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = table.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield server.server_port, table
        server.shutdown()


def made(used: float) -> str:
    """The families of MADE, as an agent exposes them."""
    measures = (
        Measure(metric="mldebug_quota_used_ratio", labels=("work",), value=used),
        Measure(metric="mldebug_filesystem_quota_used_ratio", labels=("/work", "/dev/sda", "user", "1000"), value=used),
    )  # fmt: skip
    part = CollectorState(name="made", at=time.time(), measures=measures)
    kinds = (KindCount(kind=KernelEventKind.OOM_KILL, count=1, last_at=time.time()),)
    snap = snapshot(storage=StorageState(parts=(part,)), kernel=KernelCounts(kinds=kinds))
    text = Renderer().render(snap, "text/plain")[0].decode()
    return "".join(line + "\n" for line in text.splitlines() if set(re.findall(r"mldebug_\w+", line)) & MADE)  # fmt: skip


def probed(state: Path, runs: int, speed: float) -> None:
    """So many runs of a probe of that bus bandwidth, in bytes a second, more."""
    series = ProbeSeries(
        op="all_reduce", bytes=1 << 24, dtype="float32", ranks=8, device="NVIDIA H200", nodes="n1",
        torch="2.11.0", nccl="2.28.9", nccl_algo="", variables="",
    )  # fmt: skip
    now = time.time()
    add_runs(state, [(series, ProbeRun(at=now + number / 1000, seconds=1e-3, busbw=speed)) for number in range(runs)])  # fmt: skip


@contextmanager
def prometheus(folder: Path, agent: int, pages: int) -> Iterator[Prometheus]:
    """The real server with the shipped rules, each second."""

    def job(name: str, port: int, path: str) -> dict[str, object]:
        target = {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name if port == pages else NODE}}  # fmt: skip
        return {"job_name": name, "metrics_path": path, "static_configs": [target]}

    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": rules_at_once(folder),
        "scrape_configs": [job("mldebug", agent, "/metrics"), job("made", pages, "/made")],
    }  # fmt: skip
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    file = f"--config.file={folder / 'prometheus.yaml'}"
    with serving(folder, ("prometheus",), "tsdb.path", file) as port:
        yield Prometheus(port)


def configured(folder: Path, port: int, mount: Path) -> str:
    """Every section that a dashboard shows something of."""
    for name in ("tree", "canary"):
        (folder / name).mkdir()
    return settings(folder, stall=STALL, listen=f"127.0.0.1:{port}") + (
        "checkpoints: {settle: 5s, interval: 2s}\n"
        "memory: {interval: 1s}\n"
        f"trees: {{paths: [{folder / 'tree'}]}}\n"
        f"storage: {{interval: 500ms, paths: [{mount}], canary: {{paths: [{folder / 'canary'}], interval: 1s}}}}\n"
    )


@contextmanager
def staged(folder: Path) -> Iterator[Scene]:
    """Everything in its place, and the job begins."""
    fake = FakeNvml(folder, "training")
    for device in range(2):
        fake.set(f"nvmlDeviceGetMarginTemperature {device}", 30)  # it is not in the recording
    port = free_port()
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    job = Evaluating(Plan(world_size=RANKS, hook=True), folder)
    with (
        fuse_mount(folder, User()) as (shard, mount),
        served() as (pages, opened),
        prometheus(folder, port, pages) as server,
        watching(folder, configured(folder, port, shard.parent), more=more) as agent,
    ):
        try:
            job.start()
            yield Scene(folder, agent, fake, job, server, opened, mount)
        finally:
            job.end()
