"""Every query of every dashboard, in a real Prometheus with the shipped rules, over a scripted incident under a real agent.

What is real: the agent, a job of three ranks with gloo under `mldebug run`, its checkpoints, a FUSE filesystem that stops answering,
a directory that grows, test writes, two runs of `mldebug probe collectives`. The agent's GPUs are the fake libnvidia-ml, which serves
recordings of two H200s, and what MOVED sets in them. MADE, and nothing else, comes from an exposition that our own renderers make of
made-up facts: nobody may write into the kernel's log here or set quotas of the kernel, and the agent asks a quota tool every five
minutes. That a collective had a wrong value is put into the file of the second probe.
"""

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from boards import Asking, queries
from fakenvml.library import FakeNvml
from mldebug.filling.state import Measure, PartState, StorageState
from mldebug.kernellog.counts import KernelCounts, KindCount
from mldebug.kernellog.facts import Kind
from mldebug.snapshot import RunState
from mldebug_agents.nvml import fields
from mldebug_exporters.prometheus import Prometheus as Renderer
from processes.harness import (
    JOBS,
    SCRIPTS,
    Plan,
    RunningJob,
    User,
    clean_environment,
    folder_for,
    free_port,
    fuse_mount,
    send_signal,
    wait_for,
)
from processes.test_metrics import Prometheus
from processes.test_prometheus_rules import rules_at_once, serving
from processes.watching import RunningAgent, settings, watching
from series import asked
from snapshots import snapshot

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")

RANKS = 3
STALL = "{timeout: 15s, interval: 1s}"
MADE = {
    "mldebug_kernel_event_last_timestamp_seconds",
    "mldebug_quota_used_ratio",
    "mldebug_filesystem_quota_used_ratio",
}
PROBED = "mldebug_probe_collective"
PATIENCE = 150.0  # of a GPU that does not answer, and what is read of GPUs each half minute
MOVED: dict[str, tuple[object, ...]] = {
    "nvmlDeviceGetMemoryInfo_v2 1": (150_754_820_096, 616 << 20, 100 << 30, 40 << 30),
    "nvmlDeviceGetMarginTemperature 1": (9,),
    "nvmlDeviceGetCurrentClocksEventReasons 1": (0x40,),
    "nvmlDeviceGetTotalEccErrors 1 0 0": (12,),
    "nvmlDeviceGetRemappedRows 1": (4, 0, 0, 0),
}
"""Call and answer: memory in use, degrees left, clocks cut by heat, corrected errors, rows replaced."""


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
    def run(self) -> RunState | None:
        """The job as the agent knows it."""
        seen = self.agent.snapshot()
        return (
            next((run for run in seen.runs if run.name == "evaluating.py"), None) if seen else None
        )

    def has(self, query: str, seconds: float = 60.0) -> None:
        """Wait until a query gives anything."""
        try:
            wait_for(query, lambda: self.server.samples(query), seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.agent.log[-2000:]}\n{self.job.tail()}") from None


# --- what is scraped ---------------------------------------------------------------------------


@contextmanager
def served() -> Iterator[tuple[int, dict[str, str]]]:
    """A port that serves texts by path."""
    told: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = told.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield server.server_port, told
        server.shutdown()


def made(used: float) -> str:
    """The families of MADE, as an agent exposes them."""
    measures = (
        Measure(metric="mldebug_quota_used_ratio", labels=("work",), value=used),
        Measure(metric="mldebug_filesystem_quota_used_ratio", labels=("/work", "/dev/sda", "user", "1000"), value=used),
    )  # fmt: skip
    part = PartState(name="made", at=time.time(), measures=measures)
    kinds = (KindCount(kind=Kind.OOM_KILL, count=1, last_at=time.time()),)
    seen = snapshot(storage=StorageState(parts=(part,)), kernel=KernelCounts(kinds=kinds))
    text = Renderer().render(seen, "text/plain")[0].decode()
    return "".join(line + "\n" for line in text.splitlines() if set(re.findall(r"mldebug_\w+", line)) & MADE)  # fmt: skip


def probed(folder: Path) -> str:
    """What a real probe of two ranks with gloo writes for node_exporter."""
    file = folder / "probe.prom"
    subprocess.run(
        [str(SCRIPTS / "mldebug"), "probe", "collectives", "--device", "cpu", "--nproc", "2", "--sizes", "1KiB,64KiB",
         "--ops", "all_reduce,broadcast", "--beside-jobs", "--textfile", str(file), "--python", sys.executable],
        check=True, capture_output=True, timeout=200, env=clean_environment(folder),
    )  # fmt: skip
    return file.read_text(encoding="utf-8")


@contextmanager
def prometheus(folder: Path, agent: int, pages: int) -> Iterator[Prometheus]:
    """The real server with the shipped rules, each second."""

    def job(name: str, port: int, path: str) -> dict[str, object]:
        target = {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name if port == pages else "n1"}}  # fmt: skip
        return {"job_name": name, "metrics_path": path, "static_configs": [target]}

    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": rules_at_once(folder),
        "scrape_configs": [job("mldebug", agent, "/metrics"), job("made", pages, "/made"), job("node", pages, "/probe")],
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


# --- the script --------------------------------------------------------------------------------


def all_is_well(scene: Scene) -> str:
    """The id of the run: it steps, and saved several times."""
    scene.pages |= {"/made": made(0.4), "/probe": probed(scene.folder)}
    scene.has('sum(mldebug_checkpoint_saves{state="complete"}) > 2', 200)
    scene.has("mldebug_gpu_memory_bytes and on (gpu) mldebug_gpu_tensor_active_ratio > 0")
    run = scene.run
    assert run is not None
    scene.has(f'mldebug:run_step_duration_seconds:p99_5m{{run="{run.id}"}} > 0')
    return run.id


def something_hangs(scene: Scene) -> None:
    """Rank 2 stops, and after the incident rank 1; a filesystem does not answer; a directory grows."""
    run = scene.run
    assert run is not None
    (scene.folder / "tree/grown").write_bytes(bytes(1 << 20))
    send_signal(scene.mount, signal.SIGSTOP)
    scene.fake.play("hang-sleep")
    send_signal(run.ranks[2], signal.SIGSTOP)
    scene.has(f'mldebug_incident_open_info{{run="{run.id}", verdict="rank_stopped"}}', 90)
    scene.has(f'mldebug_run_ranks_by_class{{run="{run.id}", class="stopped"}} == 1')
    send_signal(run.ranks[1], signal.SIGSTOP)
    scene.has(f'mldebug_run_ranks_by_class{{run="{run.id}", class="stopped"}} == 2')
    scene.has("mldebug_filesystem_stuck_seconds > 3")


def gpus_break(scene: Scene) -> None:
    """All that is set, then an Xid on both, one after the other, and one is gone."""
    for call, answer in MOVED.items():
        scene.fake.set(call, *answer)
    scene.fake.field(1, fields.PCIE_RECEIVE, 10**9, kind=1)
    scene.fake.field(1, fields.NVLINK_RECEIVE, 10**9, fields.ALL_LINKS)
    scene.fake.raise_event(1, 79)
    scene.has("count(mldebug_suggested_action_info{uuid!=''}) == 1")
    scene.has("mldebug_gpu_remapped_rows_total > 0", PATIENCE)
    scene.fake.raise_event(0, 79)
    scene.has("count by (component, action, reason_code) (mldebug_suggested_action_info) == 2")
    scene.fake.lose(1)


def it_recovers(scene: Scene, run: str) -> None:
    """Whoever was stopped goes on, and somebody has looked into a second probe."""
    known = scene.run
    assert known is not None
    for pid in (known.ranks[1], known.ranks[2], scene.mount):
        send_signal(pid, signal.SIGCONT)
    scene.server.wait(f'mldebug_run_up{{run="{run}"}}', 1)
    wrong = re.sub(r'(_correct\{op="all_reduce".*\}) 1', r"\1 0", probed(scene.folder))
    scene.pages |= {"/made": made(0.9), "/probe": wrong}
    scene.has(f'mldebug_checkpoint_work_lost_seconds{{run="{run}"}} < 10', 60)


# --- what the dashboards show ------------------------------------------------------------------


def filled_in(query: Asking, run: str) -> str:
    """As Grafana fills it in; the node is that of the real agent, but for what is made or probed."""
    names = {name for name, _ in asked(query.expression)}
    elsewhere = bool(names & MADE) or any(name.startswith(PROBED) for name in names)
    values = {"$run": run, "$node": "made|node" if elsewhere else "n1", "$gpu": ".*"}
    values |= {"$__rate_interval": "1m", "${reports}": "https://reports.example.org"}
    text = query.expression
    for variable, value in values.items():
        text = text.replace(variable, value)
    assert "$" not in text.replace("$1", "")
    return text


def still(server: Prometheus, run: str, began: float) -> dict[str, str]:
    """The queries that gave nothing, or only constants, since the beginning, and what they gave."""
    found = {}
    for query in queries():
        told = server.ask("query_range", query=filled_in(query, run), start=began, end=time.time(), step=1)  # fmt: skip
        curves = [{value for _, value in one["values"]} for one in (told or {}).get("result", [])]
        if not any(len(curve - {"NaN"}) > 1 for curve in curves):
            found[query.name] = f"{filled_in(query, run)} gave {curves}"
    return found


AT_THE_END = {"mldebug-cluster: Agents that do not answer A"}  # it moves when the agent ends


@contextmanager
def staged(folder: Path) -> Iterator[Scene]:
    """Everything in its place, and the job begins."""
    fake = FakeNvml(folder, "training")
    port = free_port()
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    job = Evaluating(Plan(world_size=RANKS, hook=True), folder)
    with (
        fuse_mount(folder, User()) as (shard, mount),
        served() as (pages, told),
        prometheus(folder, port, pages) as server,
        watching(folder, configured(folder, port, shard.parent), more=more) as agent,
    ):
        try:
            job.start()
            yield Scene(folder, agent, fake, job, server, told, mount)
        finally:
            job.end()


def test_every_query_of_every_dashboard_shows_something_that_moves() -> None:
    """Strictly: at least one series with two different values; absence does not count."""
    began = time.time()
    with folder_for(User()) as folder, staged(folder) as scene:
        run = all_is_well(scene)
        something_hangs(scene)
        gpus_break(scene)
        it_recovers(scene, run)
        try:
            wait_for("all move", lambda: still(scene.server, run, began).keys() <= AT_THE_END, PATIENCE)  # fmt: skip
        except AssertionError:
            left = still(scene.server, run, began)
            raise AssertionError(
                "\n".join(f"{name}: {told}" for name, told in left.items())
            ) from None
        scene.agent.process.terminate()
        wait_for("the end is seen", lambda: not still(scene.server, run, began), 60)
