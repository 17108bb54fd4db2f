"""Every query of every dashboard, in a real Prometheus with the shipped rules, over a scripted incident under a real agent.

`staging` says what of it is real. GPUs break by what MOVED sets in the fake library.
"""

import signal
import time

import pytest

from mldebug_agents.hardware.gpu.nvml import fields
from processes.exporters.staging import MADE, NODE, Scene, made, probed, staged
from processes.exporters.test_metrics import Prometheus
from processes.harness import User, folder_for, send_signal, wait_for
from processes.needs import need_torch
from shared.deploy.dashboards import Asking, queries
from shared.deploy.series import queried_series

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]
need_torch("the scenarios train with PyTorch")

Curve = list[tuple[float, str]]
"""Time and value, as Prometheus tells them."""
SECONDS = 150.0  # of a GPU that does not answer, and what is read of GPUs each half minute
MOVED: dict[str, tuple[object, ...]] = {
    "nvmlDeviceGetMemoryInfo_v2 1": (150_754_820_096, 616 << 20, 100 << 30, 40 << 30),
    "nvmlDeviceGetMarginTemperature 1": (9,),
    "nvmlDeviceGetCurrentClocksEventReasons 1": (0x40,),
    "nvmlDeviceGetTotalEccErrors 1 0 0": (12,),
    "nvmlDeviceGetRemappedRows 1": (4, 0, 0, 0),
}
"""Call and answer: memory in use, degrees left, clocks cut by heat, corrected errors, rows replaced."""
AT_THE_END = {"mldebug-cluster: Agents that do not answer A"}  # it moves when the agent ends

NOT_STAGED = {
    f"mldebug-job: {title} A"
    for title in (
        "GPU utilization of ranks", "GPU multiprocessors of ranks", "GPU power of ranks", "GPU clocks of ranks", "Throttled GPUs of ranks",
        "GPU memory of ranks", "NVLink of ranks", "Network ports of its nodes",
    )
}  # fmt: skip
"""They need ranks on GPUs, and RDMA ports: the ranks here run on CPUs. `test_dashboards_gpus` has them, of made figures; `tests/gpu/validate.py whose` the join
on real GPUs."""


# --- the script --------------------------------------------------------------------------------


def all_is_well(scene: Scene) -> str:
    """The id of the run: it steps, and saved several times."""
    scene.pages["/made"] = made(0.4)
    probed(scene.agent.state, 11, 400e9)
    scene.has('sum(mldebug_checkpoint_saves{state="complete"}) > 2')
    scene.has("mldebug_gpu_memory_bytes and on (gpu) mldebug_gpu_tensor_active_ratio > 0")
    run = scene.run
    scene.has("mldebug_probe_shifted == 0")
    scene.has("mldebug:run_step_duration_seconds:p99_5m > 0")  # of the run on all its nodes
    return run.id


def something_hangs(scene: Scene, run: str) -> None:
    """Rank 2 stops and goes on; then two ranks and a filesystem stop, and a directory grows."""
    mine = f'run="{run}"'
    stop(scene, 2)
    scene.has(f'mldebug_incident_open_info{{{mine}, verdict="rank_stopped"}}')
    scene.has(f'mldebug_run_ranks_by_class{{{mine}, class="stopped"}} == 1')
    go_on(scene, run)
    (scene.folder / "tree/grown").write_bytes(bytes(1 << 20))
    scene.fake.play("hang-sleep")
    send_signal(scene.mount, signal.SIGSTOP)
    stop(scene, 1, 2)
    scene.has(f'mldebug_run_ranks_by_class{{{mine}, class="stopped"}} == 2')
    scene.has("mldebug_filesystem_stuck_seconds > 3")


def stop(scene: Scene, *ranks: int) -> None:
    """As a debugger or a batch system does."""
    known = scene.run
    for rank in ranks:
        send_signal(known.ranks[rank], signal.SIGSTOP)


def go_on(scene: Scene, run: str) -> None:
    """Whoever was stopped; the run has no incident any more."""
    known = scene.run
    for pid in known.ranks.values():
        send_signal(pid, signal.SIGCONT)
    scene.has(f'mldebug_run_up{{run="{run}"}} == 1')


def gpus_break(scene: Scene) -> None:
    """All that is set, then an Xid on both, one after the other, and one is gone."""
    for call, answer in MOVED.items():
        scene.fake.set(call, *answer)
    scene.fake.field(1, fields.PCIE_RECEIVE, 10**9, kind=1)
    scene.fake.field(1, fields.NVLINK_RECEIVE, 10**9, fields.ALL_LINKS)
    heat = fields.CLOCK_EVENTS[
        "hw_thermal_slowdown"
    ]  # counted, too: once its unit is known, the state is not asked
    scene.fake.field(1, heat, 2 * 10**9)
    scene.fake.raise_event(1, 79)
    scene.has("count(mldebug_suggested_action_info{uuid!=''}) == 1")
    scene.has("mldebug_gpu_remapped_rows_total > 0")
    scene.has(
        "mldebug:gpu_throttled:ratio10m > 0"
    )  # before that GPU is gone: it is read often while a stall is suspected
    scene.fake.raise_event(0, 79)
    scene.has("count by (component, action, reason_code) (mldebug_suggested_action_info) == 2")
    scene.fake.lose(1)


def it_recovers(scene: Scene, run: str) -> None:
    """Whoever was stopped goes on; the network has become slow."""
    send_signal(scene.mount, signal.SIGCONT)
    go_on(scene, run)
    scene.pages["/made"] = made(0.9)
    probed(scene.agent.state, 3, 200e9)
    scene.has(f'mldebug_checkpoint_work_lost_seconds{{run="{run}"}} < 10')


# --- what the dashboards show ------------------------------------------------------------------


def filled_in(query: Asking, run: str, across: str) -> str:
    """As Grafana fills it in; the node is that of the real agent, but for what is made."""
    names = {name for name, _ in queried_series(query.expression)}
    values = {"$run": across, "$own": run, "$node": "made" if names & MADE else NODE, "$gpu": ".*"}
    values |= {"$__rate_interval": "1m", "${reports}": "https://reports.example.org"}
    text = query.expression
    for variable, value in values.items():
        text = text.replace(variable, value)
    assert "$" not in text.replace("$1", "")
    return text


def still(server: Prometheus, run: str, began: float, moved: set[str]) -> dict[str, str]:
    """The queries that do not move, and what they gave since the beginning.

    What has moved since then has moved for ever: its name goes into `moved`, and it is not asked again.
    """
    found = {}
    across = server.samples(f'mldebug_run_across_nodes_info{{run="{run}"}} or last_over_time(mldebug_run_across_nodes_info{{run="{run}"}}[10m])')[0][0]["run_across_nodes"]  # fmt: skip
    for query in (one for one in queries() if one.name not in NOT_STAGED | moved):
        expression = filled_in(query, run, across)
        answer = server.ask("query_range", query=expression, start=began, end=time.time(), step=1)
        curves = [one["values"] for one in (answer or {}).get("result", [])]
        moves = comes_and_goes if query.annotation else varies
        if not any(moves(curve) for curve in curves):
            found[query.name] = f"{expression} gave {[{value for _, value in curve} for curve in curves]}"  # fmt: skip
        elif not query.annotation:
            moved.add(query.name)
    return found


def varies(curve: Curve) -> bool:
    """It has two values; absence is none."""
    return len({value for _, value in curve} - {"NaN"}) > 1


def comes_and_goes(curve: Curve) -> bool:
    """An incident is a region that ends: the value is always 1."""
    return bool(curve) and float(curve[-1][0]) < time.time() - 5


def test_every_query_of_every_dashboard_shows_something_that_moves() -> None:
    """Strictly: at least one series has two different values, and absence does not count. An annotation ends."""
    began, moved = time.time(), set[str]()
    with folder_for(User()) as folder, staged(folder) as scene:
        run = all_is_well(scene)
        something_hangs(scene, run)
        gpus_break(scene)
        it_recovers(scene, run)
        try:
            wait_for("all move", lambda: still(scene.server, run, began, moved).keys() <= AT_THE_END, SECONDS)  # fmt: skip
        except AssertionError:
            left = still(scene.server, run, began, moved)
            raise AssertionError(
                "\n".join(f"{name}: {value}" for name, value in left.items())
            ) from None
        scene.agent.process.terminate()
        wait_for("the end is seen", lambda: not still(scene.server, run, began, moved), SECONDS)
