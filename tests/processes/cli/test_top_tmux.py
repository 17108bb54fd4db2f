"""`mldebug top` in a real terminal of 80 columns (tmux), beside a real agent and jobs: what is on the screen, and what its keys do."""

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakenvml.library import FakeNvml
from processes.agent.light import light_job
from processes.harness import PACE, SCRIPTS, Plan, clean_environment, running, wait_for
from processes.incidents.watching import settings, watching
from processes.needs import need_torch

need_torch("the job trains with PyTorch")
pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux here"),
]
COLUMNS, LINES = 80, 24


class Tmux:
    """A tmux server of its own with one window."""

    def __init__(self, folder: Path) -> None:
        self._name, self._folder = f"mldebug-{uuid.uuid4().hex[:12]}", folder
        self.screens: list[str] = []  # every screen, to be shown where something fails

    def do(self, *words: str) -> str:
        """Run one tmux command; its output."""
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *words],
            env=clean_environment(self._folder) | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.stdout

    def screen(self) -> str:
        """What is on the screen."""
        self.screens.append(self.do("capture-pane", "-p", "-t", "0"))
        return self.screens[-1]

    def until(self, pattern: str) -> str:
        """The first screen with this pattern."""

        def found() -> str:
            shown = self.screen()
            return shown if re.search(pattern, shown) else ""

        try:
            return str(wait_for(f"{pattern!r} on the screen", found, 90))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screens[-1]}") from None

    def press(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self.do("send-keys", "-t", "0", *keys)


@contextmanager
def terminal(folder: Path, command: str) -> Iterator[Tmux]:
    """A shell that has `mldebug top` typed into it."""
    tmux = Tmux(folder)
    try:
        tmux.do("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "sh")
        tmux.press(command, "Enter")
        yield tmux
    finally:
        tmux.do("kill-server")


def test_top_beside_an_agent_in_80_columns_and_its_keys(tmp_path: Path) -> None:
    with (
        watching(tmp_path) as agent,
        running(Plan(world_size=2, hook=True, options=PACE)) as job,
    ):
        job.wait_for_step(5)
        wait_for("the agent to know its step", lambda: (one := agent.run_of(job)) and one.step, 60)
        command = f"{SCRIPTS / 'mldebug'} top --config {agent.config}"
        with terminal(tmp_path, command) as tmux:
            shown = tmux.until(r"train\.py .*0-1 of 2 +\d+ +\d+\.\d\d")  # step, and steps a second
            assert "RUN" in shown
            assert "1 run " in shown
            assert "q quit" in shown
            rank_lines = re.findall(r"^ +[01]  .*$", shown, re.MULTILINE)
            assert len(rank_lines) == 2, shown
            first = int(re.search(r"0-1 of 2 +([\d,]+)", shown)[1].replace(",", ""))  # type: ignore[index]
            tmux.until(rf"0-1 of 2 +(?!{first}\b)[\d,]+")  # it goes on by itself
            tmux.press("?")
            tmux.until("(?i)esc.*back|back.*esc")
            tmux.press("Escape")
            tmux.until("q quit")
            tmux.press("d")
            tmux.until(r"mldebug dump --job .*\n(.*\n)*.*Not stuck")
            tmux.press("Escape")
            tmux.until("0-1 of 2")
            tmux.press("p")
            tmux.until(r"mldebug profile --job .*\n(.*\n)*.*by torch\.profiler")
            tmux.press("Escape")
            tmux.until("0-1 of 2")
            tmux.press("q")
            left = tmux.until(r"(?m)^[$#] *$")  # the shell's screen, as it was
            assert "mldebug top --config" in left.replace("\n", "")
            assert "q quit" not in left
            assert all(len(line) <= COLUMNS for one in tmux.screens for line in one.splitlines())
        now = max(map(job.step, job.ranks))
        wait_for("more steps", lambda: min(map(job.step, job.ranks)) > now + 5)
        assert not any("Traceback" in one for one in tmux.screens)


def test_a_stalled_run_beside_another_with_gpus_alerts_and_disks(tmp_path: Path) -> None:
    """The driver's library is a fake that serves recordings of two H200s."""
    (tmp_path / "nvml").mkdir()
    fake = FakeNvml(tmp_path / "nvml", "training")
    library = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    limits = "storage: {limits: {/: '0.01'}}\n"  # so that it has an alarm
    config = settings(tmp_path, stall="{timeout: 6s, interval: 1s}") + limits
    with (
        watching(tmp_path, config, more=library) as agent,
        light_job(tmp_path / "stuck") as stuck,
        light_job(tmp_path / "well") as well,
    ):

        def on_gpus() -> None:
            for rank, pid in stuck.ranks.items():
                fake.set(f"nvmlDeviceGetComputeRunningProcesses_v3 {rank}", pid, 1 << 30)

        on_gpus()
        with terminal(tmp_path, f"{SCRIPTS / 'mldebug'} top --config {agent.config}") as tmux:
            tmux.until(r" 2 runs +4 ranks")
            tmux.until(r"(?m)^ +0 +█{8,}░* +8\d % ")  # its GPUs work
            os.kill(stuck.ranks[0], signal.SIGSTOP)
            fake.play("hang-sleep")
            on_gpus()
            shown = tmux.until(r" 1 incident ")
            assert re.search(rf"^>? +{stuck.name} .*STALLED", shown, re.MULTILINE), shown
            shown = tmux.until(r"(?m)^ +0 +\S.* <<")  # who is to blame comes first among the ranks
            assert re.search(r"^GPU +BUSY +MEMORY +POWER +TEMP", shown, re.MULTILINE), shown
            assert re.search(r"^ +0 +[█░]{10} +\d+ % +\d+/\d+ GiB ", shown, re.MULTILINE), shown
            assert "WAITS" in shown
            tmux.until(r"(?m)^! .*/")  # the alarm
            tmux.until(r"(?m)^disk: .*% used")
            tmux.until(rf"(?m)^> +{stuck.name}")
            tmux.press("Down")
            tmux.until(rf"(?m)^> +{well.name}")
            tmux.press("Up")
            tmux.until(rf"(?m)^> +{stuck.name}")
            tmux.press("o")
            tmux.until(r"mldebug reports show \S+.*\n(.*\n)*.*confidence")
            tmux.press("PageDown")
            tmux.press("Escape")
            shown = tmux.until(" 2 runs +4 ranks")
            tmux.press("q")
            tmux.until(r"(?m)^[$#] *$")
            assert all(len(line) <= COLUMNS for one in tmux.screens for line in one.splitlines())
            assert not any("Traceback" in one for one in tmux.screens)
        (tmp_path / "screen.txt").write_text(shown)  # as it was recorded
