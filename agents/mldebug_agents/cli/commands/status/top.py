"""Watch runs, ranks, GPUs and storage live in the terminal."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console
from mldebug.cli.durations import bounded_duration
from mldebug.config.schema import Config, load_config
from mldebug.core.plugins import NoOptions
from mldebug.status.cluster_nodes import viewed
from mldebug.status.merged_runs import ViewedNodes, merge_runs
from mldebug.status.top.keys import TopState, press
from mldebug.status.top.rates import StepRates
from mldebug.status.top.screen import TopInput, chosen, screen
from mldebug_agents.agent.node_look import NodeViewer, send_view
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.cli.node_options import node_options
from mldebug_agents.cli.top.commands import KeyCommands
from mldebug_agents.cli.top.looks import Looked, LookThread
from mldebug_agents.cli.top.terminal import GONE, NEWS, FullScreen, check_terminal
from mldebug_agents.cluster.fanout.abandonment import ended_by_signals
from mldebug_agents.cluster.node_captures import FANOUT
from mldebug_agents.cluster.node_views import (
    FarNodes,
    cluster_view,
    far_nodes,
    refuse_both,
    view_nodes,
)
from mldebug_agents.system.spawn import ProgramStarter, Spawner

EVERY, EVERY_FAR = 1.0, 10.0  # seconds between two looks: here, and at other nodes
OFTENEST, RAREST = 0.5, 600.0
REDRAW = 1.0  # seconds: the clock and ages go on without news
NO_RUN = TopInput(ViewedNodes(), {}, "")

Look = Callable[[], ViewedNodes]


@click.command("top")
@click.option("--every", metavar="DURATION", help="How often to look, 1s by default; at other nodes 10s.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one screen, for a pipe or a script, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one look as an object, and end.")
@click.option("--cluster", "everywhere", is_flag=True, help="All nodes, as the agents know them.")
@node_options
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    every: str | None, once: bool, as_json: bool, everywhere: bool, slurm_job: str | None, hosts: str | None, there: str, wait: str | None,
    send: bool, config: Path | None,
) -> None:  # fmt: skip
    """Watch runs, ranks, step rates, GPUs, alerts and storage live: on this node, or on several.

    Keys: arrows choose a run, d captures its ranks, p profiles it, o opens its report, ? helps, q ends. Nothing is
    attached to unless a key asks for it.
    """
    settings = load_config(config)
    if send:
        send_view(settings, here_only=config is not None, gpus=True, storage=True)
        return
    far = far_nodes(("top", "--send"), slurm_job, hosts, there, wait)
    if far is not None:
        refuse_both(everywhere)
    usual = EVERY_FAR if far else EVERY
    interval = (
        bounded_duration("--every", every, OFTENEST, RAREST, "1s or 1m")
        if every is not None
        else usual
    )
    if not once and not as_json:
        check_terminal(dict(os.environ))
    with ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        look, starter = _ways(stack, settings, far, everywhere, here_only=config is not None)
        if once or as_json:
            _once(look, as_json=as_json, here=far is None and not everywhere)
            return
        ways = {"--slurm-job": slurm_job, "--hosts": hosts, "--cluster": "" if everywhere else None}
        elsewhere = tuple(word for way, value in ways.items() if value is not None for word in (way, value) if word)  # fmt: skip
        _Top(look, interval, starter, config, elsewhere).run()


def _ways(
    stack: ExitStack, config: Config, far: FarNodes | None, everywhere: bool, *, here_only: bool
) -> tuple[Look, ProgramStarter]:
    """How to look, and what starts programs: made before any thread."""
    if far is not None:
        spawner = stack.enter_context(Spawner(FANOUT))
        return (lambda: view_nodes(spawner, config, far)), spawner
    tools = stack.enter_context(open_tools(config))
    if everywhere:
        return (lambda: viewed(cluster_view(config, here_only=here_only))), tools.context.spawner
    here = NodeViewer(tools, config, here_only=here_only, jobs=False, gpus=True, storage=True)
    return (lambda: ViewedNodes(answers=(here.look(),))), tools.context.spawner


def _is_plain() -> bool:
    """Whether the terminal shows no characters but those of ASCII."""
    return "utf" not in (sys.stdout.encoding or "").lower()


def _once(look: Look, *, as_json: bool, here: bool) -> None:
    nodes = look()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(nodes), indent=2).decode())
        return
    console = Console()
    rates = StepRates().look(merge_runs(nodes.answers), time.monotonic())
    shown = TopInput(nodes, rates, time.strftime("%H:%M:%S"), here=here, plain=_is_plain())
    lines = screen(shown, TopState(), console.width, 10_000)[:-1]  # without the keys
    while lines and not lines[-1].text:
        lines.pop()
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True, highlight=False)


class _Top:
    """The loop: draw, wait for a key or news, draw again."""

    def __init__(self, look: Look, interval: float, starter: ProgramStarter, config: Path | None, elsewhere: tuple[str, ...]) -> None:  # fmt: skip
        self._look, self._interval, self._here = look, interval, not elsewhere
        color = Console().color_system is not None and "NO_COLOR" not in os.environ
        self._screen = FullScreen(color=color)
        self._commands = KeyCommands(starter, config, elsewhere, self._screen.wake)
        self._rates = StepRates()
        self._shown: TopInput = NO_RUN
        self._looked_at = 0.0
        self._state = TopState(message="looking …")

    def run(self) -> None:
        """Until `q`, a signal, or the end of the terminal."""
        with self._screen as terminal:
            looks = LookThread(self._look, self._interval, terminal.wake)
            try:
                while True:
                    self._take(looks.newest)
                    terminal.draw(screen(self._shown, self._state, *terminal.size()))
                    for key in terminal.keys(REDRAW):
                        if key == GONE or (key != NEWS and self._pressed(key)):
                            return
            finally:
                looks.end()

    def _take(self, looked: Looked | None) -> None:
        """What has come since the last drawing."""
        now = time.monotonic()
        if looked is not None:
            if looked.at != self._looked_at:
                self._looked_at = looked.at
                rates = self._rates.look(merge_runs(looked.nodes.answers), looked.at)
                self._shown = TopInput(looked.nodes, rates, "", here=self._here, plain=_is_plain())
                if self._state.message == "looking …":
                    self._state = msgspec.structs.replace(self._state, message="")
            if looked.trouble:
                self._state = msgspec.structs.replace(self._state, message=looked.trouble)
            age = max(0.0, now - looked.at - self._interval)
            self._shown = self._shown._replace(age=age)
        self._shown = self._shown._replace(clock=time.strftime("%H:%M:%S"))
        pane = self._commands.taken()
        changes = {"pane": pane, "scroll": 0} if pane is not None else {}
        self._state = msgspec.structs.replace(self._state, busy=self._commands.busy, **changes)

    def _pressed(self, key: str) -> bool:
        """Whether that was the last key."""
        runs = merge_runs(self._shown.nodes.answers)
        run = chosen(runs, self._state)
        pane = self._state.pane
        longest = len(pane.lines) if pane else len(run.ranks) if run else 0
        ids = tuple(one.first.id for one in runs)
        self._state, action = press(self._state, key, ids, max(1, longest))
        if action in ("dump", "profile", "report") and run is not None:
            message = self._commands.only_there(action, run)
            words = () if message else self._commands.words(action, run)
            if words:
                self._commands.start(words)
            else:
                message = message or f"this mldebug has no `mldebug {action}`"
                self._state = msgspec.structs.replace(self._state, message=message)
        return action == "quit"


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug top`: watch runs, ranks, GPUs and storage live in the terminal."""
    return command
