"""The screen of `mldebug top` at several sizes, what its keys do, and the terminal, which is given back as it was."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from rich.cells import cell_len

from mldebug.core.model import GpuBrief, HookState, NodeBrief, RankBrief, Role, RunBrief
from mldebug.status.merged_runs import ViewedNodes, merge_runs
from mldebug.status.node_views import node_view
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.status.top.columns import Column, fit, table
from mldebug.status.top.keys import Action, Pane, TopState, press
from mldebug.status.top.rates import StepRates
from mldebug.status.top.screen import TopInput, bar, screen
from mldebug_agents.cli.top.commands import KeyCommands
from mldebug_agents.cli.top.terminal import keys_of
from mldebug_agents.system.spawn import ProgramStarter

NOW = 1_795_240_000.0
Golden = Callable[[str, str], None]
START = TopState()
NO_STARTER = cast(ProgramStarter, None)  # nothing is started


def run(number: int = 1, **changes: Any) -> RunBrief:
    ranks = tuple(RankBrief(rank=rank, step=1200, waits=0.1, gpu=rank) for rank in range(8))
    made = RunBrief(
        key=("torchrun", str(number)), id=f"1a2b{number}", name="train.py", launcher="torchrun", user="ada", world_size=8,
        age=3725.0, ranks=ranks, watched=True, step=1200, step_seconds=0.5, loss=2.25, stage="watching",
        sentence="watching: last step 0.4 s ago (usual gap 0.5 s); a stall after 30 s (5 times the usual)",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def gpu(index: int, **changes: Any) -> GpuBrief:
    made = GpuBrief(
        index=index, name="NVIDIA H100", busy=0.97, memory_used=61 << 30, memory_total=80 << 30, watts=640.0,
        limit_watts=700.0, celsius=61.0, user=f"rank {index}", state="healthy",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def node(name: str = "gpu01", **changes: Any) -> NodeBrief:
    made = NodeBrief(
        node=name, age=0.5, agent_seconds=3600.0, runs=(run(),), gpus=tuple(gpu(index) for index in range(8)),
        storage=("/data (nfs): 91.0% used, 1.2 TiB left, inodes 7%",),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


STALLED = run(
    stage="blamed", incident="20261127T0912-1a2b1", report="rank 3 sleeps in fetch (train.py:7), the others wait for it",
    ranks=tuple(
        RankBrief(rank=rank, step=1200 - (rank == 3), gpu=rank, state="inert" if rank == 3 else "waiting", culprit=rank == 3,
                 doing="fetch (train.py:7)" if rank == 3 else "all_reduce (distributed_c10d.py:2501)")
        for rank in range(8)
    ),
)  # fmt: skip


def drawn(nodes: ViewedNodes, width: int, height: int, state: TopState = START, here: bool = True) -> str:  # fmt: skip
    shown = TopInput(nodes, {"1a2b1": 2.04}, "09:12:03", here=here)
    lines = [line.text for line in screen(shown, state, width, height)]
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
def test_the_screen_of_a_stalled_run(width: int, height: int, golden: Golden) -> None:
    shown = node(runs=(STALLED, run(2, name="eval.py", world_size=1, ranks=(RankBrief(rank=0),))))
    text = drawn(ViewedNodes(answers=(shown,)), width, height)
    golden(f"top-{width}x{height}.txt", text)
    assert "STALLED" in text
    assert re.search(r"3  inert <<", text)


def test_the_screen_of_several_nodes(golden: Golden) -> None:
    second = node("gpu02", gpus=(gpu(0), gpu(1, state="unhealthy")), alerts=("GPU 1 is unhealthy: ECC",))  # fmt: skip
    nodes = ViewedNodes(answers=(node(), second), silent={"gpu03": "no answer in 30 s"})
    text = drawn(nodes, 100, 30, here=False)
    golden("top-nodes.txt", text)
    assert text.index("gpu03 does not answer") < text.index("train.py")


@pytest.mark.parametrize("width", [1, 20, 40, 79, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 8, 60])
def test_every_size_fits(width: int, height: int) -> None:
    drawn(ViewedNodes(answers=(node(runs=(STALLED,)),)), width, height)
    drawn(
        ViewedNodes(), width, height, TopState(pane=Pane("x" * 300, ("y" * 300,) * 90), scroll=80)
    )


def test_wide_characters_and_what_a_job_writes_keep_the_columns() -> None:
    odd = run(name="訓練の仕事\x1b[31m.py", user="a\nb", report="\x1b]0;x\x07", incident="1")
    text = drawn(ViewedNodes(answers=(node(runs=(odd,)),)), 80, 24)
    assert not {"\x1b", "\x07"} & set(text)
    assert "訓練の仕事" in text


def test_the_culprit_comes_before_ranks_that_do_not_fit() -> None:
    ranks = tuple(RankBrief(rank=rank, culprit=rank == 1000) for rank in range(1024))
    text = drawn(ViewedNodes(answers=(node(runs=(run(ranks=ranks, world_size=1024),)),)), 80, 24)
    assert re.search(r"1000 +moving <<", text)
    assert re.search(r"… [0-9]+ more", text)


def test_what_nobody_watches_shows_no_figures() -> None:
    alone = RunBrief(
        key=("x",), id="1", name="train.py", ranks=(RankBrief(rank=0, state="unseen"),)
    )
    text = drawn(ViewedNodes(answers=(node(agent_seconds=None, runs=(alone,)),)), 80, 24)
    assert "no agent watches" in text
    assert re.search(r"0 of 1 +- .*not watched", text)


def test_an_old_look_says_its_age() -> None:
    assert "s old" not in drawn(ViewedNodes(answers=(node(age=1.9),)), 80, 24)
    assert "75 s old" in drawn(ViewedNodes(answers=(node(age=75.0),)), 80, 24)


def test_the_view_of_a_snapshot_has_who_waits_and_who_is_to_blame() -> None:
    state = RunState(
        id="1a2b3c", name="train.py", launcher="torchrun", world_size=2, ranks={0: 10, 1: 11}, step=7, incident="i", culprits=(1,),
        classes={0: "collective", 1: "sleep"}, roles={0: Role.WAITING, 1: Role.INERT}, frames={1: "nap (train.py:3)"},
        hooks={1: HookState(step=6)}, stage="blamed", report="rank 1 sleeps",
    )  # fmt: skip
    view = node_view("n1", NOW, agent=Snapshot(node="n1", at=NOW - 1, started_at=NOW - 60, runs=(state,)))  # fmt: skip
    (shown,) = view.runs
    assert [(one.rank, one.state, one.culprit) for one in shown.ranks] == [(0, "waiting", False), (1, "inert", True)]  # fmt: skip
    assert (shown.ranks[1].step, shown.ranks[1].doing) == (6, "nap (train.py:3)")
    assert (view.age, view.agent_seconds, shown.report) == (1.0, 60.0, "rank 1 sleeps")


def test_a_run_on_two_nodes_is_one() -> None:
    first = node("a", runs=(run(ranks=(RankBrief(rank=0),), step=5),))
    second = node("b", runs=(run(ranks=(RankBrief(rank=1),), step=6, incident="i"),))
    other = node("c", runs=(run(2),))
    merged = merge_runs((first, second, other))
    assert [(one.nodes, one.step, bool(one.first.incident)) for one in merged] == [(("a", "b"), 6, True), (("c",), 1200, False)]  # fmt: skip


# --- keys ------------------------------------------------------------------------------------------


def test_keys_choose_scroll_and_ask() -> None:
    runs = ("a", "b")
    state = press(TopState(), "down", runs, 1).state
    assert state.run == "b"
    assert press(state, "down", runs, 1).state.run == "b"
    assert press(state, "up", runs, 1).state.run == "a"
    assert press(state, "pagedown", runs, 100).state.scroll == 10
    assert [press(state, key, runs, 1).action for key in "dpo"] == ["dump", "profile", "report"]
    assert press(state, "q", runs, 1).action == "quit"
    assert press(state, "x", runs, 1) == (state, "")


def test_a_text_is_left_before_the_screen() -> None:
    state = press(TopState(), "?", (), 1).state
    assert state.pane is not None
    assert press(state, "d", ("a",), 1).action == ""
    left = press(state, "q", (), 1)
    assert (left.state.pane, left.action) == (None, "")


def test_no_second_command_beside_one_and_none_without_a_run() -> None:
    busy = press(TopState(busy="mldebug dump"), "d", ("a",), 1)
    assert (busy.action, "mldebug dump is not done" in busy.state.message) == ("", True)
    assert press(TopState(), "d", (), 1).action == ""


def test_keys_are_read_from_what_terminals_send() -> None:
    assert list(keys_of("\x1b[A\x1bOBq\x1b[6~\x1b[1;5Cd")) == ["up", "down", "q", "pagedown", "d"]
    assert list(keys_of("\x1b")) == ["esc"]


@pytest.mark.parametrize(
    ("elsewhere", "action", "words", "there"),
    [
        ((), "dump", "dump --job 1a2b1 --config c.yaml", ""),
        ((), "profile", "profile --job 1a2b1 --config c.yaml", ""),
        ((), "report", "reports show i7 --config c.yaml", ""),
        (("--hosts", "n[1-2]"), "dump", "dump --job train.py --hosts n[1-2] --ssh --config c.yaml", ""),
        (("--slurm-job", "7"), "dump", "dump --job train.py --slurm-job 7 --config c.yaml", ""),
        (("--hosts", "n[1-2]"), "profile", "", "on b: mldebug profile --job 1a2b1"),
        (("--slurm-job", "7"), "report", "", "on b: mldebug reports show i7"),
        (("--cluster",), "dump", "dump --job train.py --cluster --config c.yaml", ""),
        (("--cluster",), "profile", "profile --job train.py --cluster --config c.yaml", ""),
    ],
)  # fmt: skip
def test_a_key_asks_where_the_run_is(
    elsewhere: tuple[str, ...], action: Action, words: str, there: str
) -> None:
    """On another node a report of this one would be that of another job."""
    some = (node("a", runs=(run(),)), node("b", runs=(run(incident="i7"),)))
    (shown,) = merge_runs(some if elsewhere else some[1:])
    commands = KeyCommands(NO_STARTER, Path("c.yaml"), elsewhere, lambda: None)
    assert commands.only_there(action, shown) == there
    assert there or " ".join(commands.words(action, shown)) == words


def test_the_report_of_a_run_without_an_incident_is_its_own() -> None:
    (shown,) = merge_runs((node(runs=(run(),)),))
    words = KeyCommands(NO_STARTER, None, (), lambda: None).words("report", shown)
    assert words == ("reports", "show", "--job", "1a2b1")


# --- figures ---------------------------------------------------------------------------------------


def test_the_step_rate_is_measured_and_falls_to_zero() -> None:
    rates = StepRates()
    first = rates.look(merge_runs((node(),)), 100.0)
    assert first == {"1a2b1": 2.0}  # by the time that its steps usually take
    assert rates.look(merge_runs((node(runs=(run(step=1220),)),)), 110.0) == {"1a2b1": 2.0}
    still = node(runs=(msgspec.structs.replace(STALLED, step=1220),))
    assert rates.look(merge_runs((still,)), 145.0) == {}
    assert rates.look(merge_runs((still,)), 150.0) == {"1a2b1": 0.0}


def test_columns_of_little_weight_go_first() -> None:
    columns = (Column("NAME", 9), Column("LESS", 1), Column("LAST", 8, most=99))
    rows = [("train.py", "0123456789", "words " * 20)]
    wide, narrow = table(columns, rows, 80), table(columns, rows, 24)
    assert "LESS" in wide[0]
    assert "LESS" not in narrow[0]
    assert narrow[1].startswith("train.py  words")
    assert fit("訓練", 3) == "訓…"


def test_a_bar_shows_its_share() -> None:
    assert (bar(0.5, True), bar(None, True), bar(1.5, False)) == ("#####.....  50 %", "-", "██████████ 150 %")  # fmt: skip


# --- the terminal ----------------------------------------------------------------------------------


def on_terminal(act: Callable[[int, int], object], **more: str) -> tuple[int, str, bool]:
    """Run top, act (pid, descriptor) once it has drawn: exit code, all output, whether the terminal is as before."""
    environ = {**os.environ, "TERM": "xterm", **more}
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    # tests that run under nohup, where a hang-up is ignored, hand that on to their children
    argv = ["env", "--default-signal=HUP", sys.executable, "-m", "mldebug", "top"]
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True)  # fmt: skip
    shown, acted, end = b"", False, time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                shown += os.read(master, 65536)
            if not acted and b"q quit" in shown and b"mldebug top" in shown:
                acted = True
                act(process.pid, master)
        while select.select([master], [], [], 0.1)[0]:
            shown += os.read(master, 65536)
        return process.wait(30), shown.decode(errors="replace"), termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def press_key(key: bytes) -> Callable[[int, int], object]:
    return lambda _pid, descriptor: os.write(descriptor, key)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (press_key(b"q"), 0),
        (lambda pid, _: os.kill(pid, signal.SIGINT), 130),
        (lambda pid, _: os.kill(pid, signal.SIGTERM), 143),
        (lambda pid, _: os.kill(pid, signal.SIGHUP), 129),
    ],
    ids=["q", "interrupt", "terminate", "hang-up"],
)
def test_the_terminal_is_given_back(act: Callable[[int, int], object], code: int) -> None:
    ended, shown, as_before = on_terminal(act)
    assert (ended, as_before) == (code, True)
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_an_error_gives_the_terminal_back(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Plant:\n    def find_spec(self, name, path, target=None):\n"
        "        if name == 'mldebug_agents.cli.commands.status.top':\n            sys.meta_path.remove(self)\n"
        "            import mldebug.status.top.screen as module\n            real = module.screen\n"
        "            module.screen = lambda *a: (_ for _ in ()).throw(RuntimeError('planted')) if a[0].nodes.answers else real(*a)\n"
        "sys.meta_path.insert(0, Plant())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended, shown, as_before = on_terminal(lambda *_: None, PYTHONPATH=path)
    assert (ended, as_before) == (70, True)
    assert shown.index("\x1b[?1049l") < shown.index("planted")


def test_no_color_means_none() -> None:
    _, plain, _ = on_terminal(press_key(b"q"), NO_COLOR="1")
    _, colored, _ = on_terminal(press_key(b"q"))
    colors = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7])m")
    assert not colors.search(plain)
    assert colors.search(colored)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_is_told_so(term: str) -> None:
    ended, shown, as_before = on_terminal(lambda *_: None, TERM=term)
    assert (ended, as_before) == (2, True)
    assert "cannot move its cursor" in " ".join(shown.split())
    assert "\x1b[" not in shown


def test_a_pipe_gets_one_screen_where_it_asks_for_it() -> None:
    argv = [sys.executable, "-m", "mldebug", "top"]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "--once" in refused.stderr) == (2, True)
    once = subprocess.run([*argv, "--once"], capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (once.returncode, once.stderr) == (0, "")
    assert once.stdout.startswith("mldebug top  ")
    assert "\x1b" not in once.stdout
