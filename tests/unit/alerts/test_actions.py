"""Actions: what runs, what does not and why, once only, and every decision written down."""

import json
import os
import queue
import signal as signals
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.alerts.action_model import (
    ActionDecision,
    ActionFacts,
    ActionOutcome,
    UnfitError,
    environment,
)
from mldebug.alerts.event_registry import EventRegistry
from mldebug.alerts.model import Alert, Severity
from mldebug.alerts.rate_limits import ActionRateLimits
from mldebug.alerts.status_lines import event_lines
from mldebug.config.schema import ActionsConfig, AgentConfig, Config
from mldebug.core.errors import ConfigError
from mldebug.core.model import Culprit, Job, RankIdentity
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create, names
from mldebug.core.yaml_reader import parse
from mldebug.jobs.owners import Owner
from mldebug.status.snapshot import Snapshot
from mldebug_agents.alerts.action_runner import audit
from mldebug_agents.alerts.action_runner import runner as desk
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.alerts.action_runner.model import ActionInput
from mldebug_agents.alerts.action_runner.runner import ActionRunner
from mldebug_agents.alerts.actions import command, signal
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result
from mldebug_exporters.metrics.actions import samples
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE
from shared.web.snapshots import snapshot

NOW = 1_700_000_000.0
RUN = "r1"


class Memory:
    """A ledger whose disk is as quick as the test says."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.opened = True
        self.stored = True

    def memo(self, name: str) -> bytes:
        return self.rows.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.rows = {**self.rows, name: data} if data else {**self.rows}
        if not data:
            self.rows.pop(name, None)

    def is_stored(self, name: str) -> bool:
        return self.stored

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.rows if name.startswith(beginning))


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner() as one:
        yield one


class Stand:
    """The desk of one agent, and the turns of its loop."""

    def __init__(
        self,
        folder: Path,
        starter: Any,
        settings: ActionsConfig,
        memory: Memory | None = None,
        node: str = "node1",
    ) -> None:
        self.folder, self.memory = folder, memory or Memory()
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.registry = EventRegistry()
        context: Any = SimpleNamespace(node=node, spawner=starter, host=Host())
        config = Config(agent=AgentConfig(state_dir=folder), actions=settings)
        ledger: Any = self.memory
        captures = CaptureRequests(SimpleNamespace, self.inbox, lambda _: "")  # type: ignore[arg-type]
        self.desk = ActionRunner(
            config, context, captures, ledger, self.registry, self.inbox, lambda: NOW
        )
        self.jobs: dict[str, Job] = {}

    def stalls(self, key: str = "incident/R1", kind: str = "stall", **more: Any) -> None:
        alarm = Alert(
            key=key, kind=kind, severity=Severity.CRITICAL, sentence="rank 2 is stopped",
            labels={"run": RUN, "job": 'evil "$(reboot)"; é'}, report="R1", confidence="high", **more,
        )  # fmt: skip
        self.registry.raise_(alarm, NOW, at_once=True)

    def tick(self) -> None:
        self.desk.tick(self.jobs)
        while not self.inbox.empty():
            result = self.inbox.get()
            assert result is not None
            assert self.desk.on_result(result)

    def until(self, count: int) -> list[ActionDecision]:
        """The audit log, once it has so many lines."""

        def enough() -> bool:
            self.tick()
            return len(self.log()) >= count

        wait_until(enough)
        for _ in range(3):
            self.tick()
        return self.log()

    def log(self) -> list[ActionDecision]:
        file = self.folder / audit.FILE
        lines = file.read_bytes().splitlines() if file.exists() else []
        return [msgspec.json.decode(one, type=ActionDecision) for one in lines]

    def snapshot(self) -> Snapshot:
        return self.desk.show(snapshot())


def run(*argv: str, **more: Any) -> Plugin:
    return Plugin("command", command.Options(argv=argv, **more))


def script(folder: Path, text: str) -> str:
    file = folder / "script"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def settings(**more: Any) -> ActionsConfig:
    """One step that counts how often it runs."""
    return ActionsConfig(**{"chains": {"stall": ("count",)}, "allow": ("command",)} | more)


def counting(folder: Path) -> dict[str, Plugin]:
    return {"count": run(script(folder, f"echo x >> {folder}/count"))}


def counted(folder: Path) -> int:
    file = folder / "count"
    return len(file.read_text().split()) if file.exists() else 0


# --- what runs, and what does not ----------------------------------------------------------------


def test_a_program_gets_the_facts_in_its_environment_and_on_stdin_and_no_shell(
    tmp_path: Path, spawner: Spawner
) -> None:
    result = script(
        tmp_path, f'env > {tmp_path}/env; cat > {tmp_path}/in; echo "$1" > {tmp_path}/arg'
    )
    stand = Stand(tmp_path, spawner, settings(steps={"count": run(result, "$(id) ;")}))
    stand.stalls(blamed=(Culprit(kind="rank", rank=2, node="node1", pid=7, reason="stopped"),))
    (line,) = stand.until(1)
    assert (line.outcome, line.code, line.run) == (ActionOutcome.RAN, 0, RUN)
    facts = json.loads((tmp_path / "in").read_text())
    assert (facts["sentence"], facts["blamed"][0]["pid"]) == ("rank 2 is stopped", 7)
    lines = (tmp_path / "env").read_text().splitlines()
    assert "MLDEBUG_EVENT_KIND=stall" in lines
    assert 'MLDEBUG_JOB=evil "$(reboot)"; é' in lines
    assert f"MLDEBUG_EVENT_ID={line.event_id}" in lines
    assert (tmp_path / "arg").read_text() == "$(id) ;\n"
    (state,) = stand.snapshot().events.actions
    assert (state.counts, state.last, bool(state.last_success)) == ({"ran": 1}, "ran", True)


def test_nothing_that_may_harm_runs_unless_it_is_allowed(tmp_path: Path, spawner: Spawner) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path), allow=()))
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, counted(tmp_path)) == (ActionOutcome.REFUSED, 0)
    assert "actions.allow does not name command; it would: " in line.why
    assert "script" in line.why


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, spawner: Spawner) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path), dry_run=True))
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, counted(tmp_path)) == (ActionOutcome.DRY_RUN, 0)
    assert line.why.startswith("it would: /")
    items = list(event_lines(stand.snapshot().events, {"R1"}, time.time()))
    assert any(
        one.startswith("action count (command): dry run at 2023-11-14T22:13:20Z") for one in items
    )


def test_steps_follow_each_other_and_one_that_fails_keeps_those_that_may_harm_from_running(
    tmp_path: Path, spawner: Spawner
) -> None:
    order = f"{tmp_path}/order"
    steps = {
        "one": run("/bin/sh", "-c", f"echo one >> {order}"),
        "two": run("/bin/sh", "-c", f"echo two >> {order}; echo why >&2; exit 3"),
        "three": run("/bin/sh", "-c", f"echo three >> {order}"),
    }
    chains = {"stall": ("one", "two", "three")}
    stand = Stand(tmp_path, spawner, settings(steps=steps, chains=chains))
    stand.stalls()
    lines = stand.until(3)
    assert [one.outcome for one in lines] == [
        ActionOutcome.RAN,
        ActionOutcome.FAILED,
        ActionOutcome.REFUSED,
    ]
    assert (lines[1].code, "ended with 3: why" in lines[1].why) == (3, True)
    assert "two before it has failed" in lines[2].why
    assert Path(order).read_text().split() == ["one", "two"]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("/bin/sh", "-c", "sleep 600 & sleep 600"), "did not end in"),
        (("/bin/sh", "-c", "exec head -c 1G /dev/zero"), "wrote more than it may"),
        (("/nowhere/program",), "cannot be started"),
    ],
)
def test_a_program_that_never_ends_or_floods_is_bounded_and_told(
    tmp_path: Path, spawner: Spawner, argv: tuple[str, ...], why: str
) -> None:
    stand = Stand(tmp_path, spawner, settings(steps={"count": run(*argv, timeout=1.0)}))
    stand.stalls()
    began = time.monotonic()
    (line,) = stand.until(1)
    assert (line.outcome, why in line.why) == (ActionOutcome.FAILED, True), line.why
    assert time.monotonic() - began < 25 * PATIENCE
    values = {(one.family.name, one.labels): one.value for one in samples(stand.snapshot())}
    assert values["mldebug_actions", ("count", "failed")] == 1
    assert values["mldebug_actions", ("count", "ran")] == 0


def test_an_event_without_a_chain_gets_the_one_of_all_others(
    tmp_path: Path, spawner: Spawner
) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path), chains={"*": ("count",)}))
    stand.stalls(kind="gpu_ecc")
    assert [one.event_kind for one in stand.until(1)] == ["gpu_ecc"]


def test_what_is_over_is_not_harmed(tmp_path: Path, spawner: Spawner) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path)))
    stand.memory.stored = False
    stand.stalls()
    stand.tick()
    stand.registry.clear("incident/R1", NOW + 1, "recovered")
    stand.memory.stored = True
    (line,) = stand.until(1)
    assert (line.outcome, "the event is over" in line.why) == (ActionOutcome.REFUSED, True)
    assert counted(tmp_path) == 0


def test_an_order_that_waited_is_not_carried_out_for_what_is_over_by_then(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hands were busy with other programs for minutes, or Slurm answered late; meanwhile the job moves again."""
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path)))
    real = command.CommandAction.plan

    def late(self: command.CommandAction, work: ActionInput) -> Any:
        stand.registry.clear("incident/R1", NOW + 1, "recovered")
        return real(self, work)

    monkeypatch.setattr(command.CommandAction, "plan", late)
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, counted(tmp_path)) == (ActionOutcome.REFUSED, 0)
    assert "by now the event is over" in line.why


@pytest.mark.parametrize("rules", [{"allow": ()}, {"dry_run": True}])
def test_an_order_that_waited_obeys_the_settings_of_now(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    steps = counting(tmp_path)
    stand = Stand(tmp_path, spawner, settings(steps=steps))
    real = command.CommandAction.plan

    def late(self: command.CommandAction, work: ActionInput) -> Any:
        stand.desk.reload(Config(actions=settings(steps=steps, **rules)))
        return real(self, work)

    monkeypatch.setattr(command.CommandAction, "plan", late)
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, counted(tmp_path)) == (ActionOutcome.REFUSED, 0)


@pytest.mark.parametrize(("outcome", "ran"), [("ended", 1), ("recovered", 0)])
def test_the_end_of_a_job_which_is_over_as_it_begins_has_its_chain(
    tmp_path: Path, spawner: Spawner, outcome: str, ran: int
) -> None:
    rules = settings(steps=counting(tmp_path), chains={"abnormal_end": ("count",)})
    stand = Stand(tmp_path, spawner, rules)
    stand.stalls(kind="abnormal_end", stands=600.0)
    stand.registry.clear("incident/R1", NOW, outcome)
    if ran:
        assert [one.outcome for one in stand.until(1)] == [ActionOutcome.RAN]
    for _ in range(5):
        stand.tick()
    assert counted(tmp_path) == ran


def test_ranks_that_came_after_the_event_are_not_its_run(
    tmp_path: Path, spawner: Spawner, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """A launch that began anew under the same id, with the same pids even."""
    steps = {"stop": Plugin("signal", signal.Options(to="ranks"))}
    rules = settings(steps=steps, chains={"stall": ("stop",)}, allow=("signal",))
    stand = Stand(tmp_path, spawner, rules)
    later = msgspec.structs.replace(rank(sleeper.pid), started_at=NOW + 10)
    stand.jobs = {RUN: Job(id=RUN, name="t", launcher="srun", ranks=(later,))}
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, sleeper.poll()) == (ActionOutcome.REFUSED, None), line.why


def test_ranks_of_several_containers_get_no_signal(
    tmp_path: Path, spawner: Spawner, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """One of them may be somebody else's, who gave his the same names."""
    steps = {"stop": Plugin("signal", signal.Options(to="ranks"))}
    rules = settings(steps=steps, chains={"stall": ("stop",)}, allow=("signal",))
    stand = Stand(tmp_path, spawner, rules)
    ranks = (
        rank(sleeper.pid),
        msgspec.structs.replace(rank(sleeper.pid), rank=1, container="ab" * 6),
    )
    stand.jobs = {RUN: Job(id=RUN, name="t", launcher="srun", ranks=ranks)}
    stand.stalls()
    (line,) = stand.until(1)
    assert (line.outcome, sleeper.poll()) == (ActionOutcome.REFUSED, None), line.why
    assert "several containers" in line.why


# --- how often -----------------------------------------------------------------------------------


def test_a_step_has_a_cool_down_for_each_run_and_a_limit_in_the_hour() -> None:
    limits = ActionRateLimits()
    limits.note("stop", "r1", NOW, 600)
    assert "cool-down" in limits.refusal("stop", "r1", NOW + 599, 600, 3)
    assert limits.refusal("stop", "r1", NOW + 601, 600, 3) == ""
    assert limits.refusal("stop", "r2", NOW + 1, 600, 3) == ""
    assert limits.refusal("save", "r1", NOW + 1, 600, 3) == ""
    limits.note("stop", "r2", NOW, 600)
    limits.note("stop", "r3", NOW, 600)
    assert "3 times in the last hour" in limits.refusal("stop", "r4", NOW + 60, 600, 3)
    assert "cool-down" in limits.refusal("stop", "r1", NOW - 5, 600, 9)  # the clock was set back
    assert limits.refusal("stop", "r4", NOW + 3601, 600, 3) == ""


@pytest.mark.parametrize(("a", "b"), [((2001, ""), (2002, "")), ((0, "ab"), (0, "cd"))])
def test_what_one_user_s_jobs_used_up_is_not_missing_to_another(a: Owner, b: Owner) -> None:
    """Twelve stalls of B: A's `page` was refused, since it ran ten times in the last hour. Roots of two containers are two, too."""
    limits = ActionRateLimits()
    for number in range(10):
        assert limits.refusal("page", f"b{number}", NOW, 600, 10, owner=b) == ""
        limits.note("page", f"b{number}", NOW, 600, owner=b)
    assert "10 times" in limits.refusal("page", "b10", NOW, 600, 10, owner=b)
    for number in range(5):  # his half
        assert limits.refusal("page", f"a{number}", NOW, 600, 10, owner=a) == ""
        limits.note("page", f"a{number}", NOW, 600, owner=a)
    assert "15 times" in limits.refusal("page", "a5", NOW, 600, 10, owner=a)
    assert limits.refusal("page", "node", NOW, 600, 10) == ""  # what concerns the node itself


def test_a_cool_down_outlives_the_agent(tmp_path: Path, spawner: Spawner) -> None:
    rules = settings(steps=counting(tmp_path))
    first = Stand(tmp_path, spawner, rules)
    first.stalls()
    first.until(1)
    second = Stand(tmp_path, spawner, rules, first.memory)
    second.registry.restore(first.registry.all())
    second.stalls(key="incident/R2")
    lines = second.until(2)
    assert [one.outcome for one in lines] == [ActionOutcome.RAN, ActionOutcome.REFUSED]
    assert "cool-down" in lines[1].why
    assert counted(tmp_path) == 1


def test_a_thousand_events_at_once_run_no_more_often_than_they_may(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path), cooldown=0.0, hourly=3))
    for number in range(1000):
        stand.stalls(key=f"incident/{number}")

    def decided() -> bool:
        stand.tick()
        (state,) = stand.snapshot().events.actions
        return sum(state.counts.values()) == 1000

    wait_until(decided)
    (state,) = stand.snapshot().events.actions
    assert state.counts == {"ran": 3, "refused": 997}
    assert len(stand.until(1000)) == 1000
    assert stand.snapshot().events.actions_trouble == ""
    assert counted(tmp_path) == 3


# --- once only -----------------------------------------------------------------------------------


def test_it_is_on_disk_before_it_is_done_and_not_done_where_the_disk_never_answers(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path)))
    stand.memory.stored = False
    stand.stalls()
    for _ in range(20):
        stand.tick()
    assert (counted(tmp_path), stand.log()) == (0, [])
    monkeypatch.setattr(desk, "STORED_WITHIN", 0.0)
    (line,) = stand.until(1)
    assert (line.outcome, counted(tmp_path)) == (ActionOutcome.REFUSED, 0)
    assert "could not be written down" in line.why


def test_nothing_is_done_before_it_is_known_what_was_done(tmp_path: Path, spawner: Spawner) -> None:
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path)))
    stand.memory.opened = False
    stand.stalls()
    for _ in range(20):
        stand.tick()
    assert counted(tmp_path) == 0
    assert "state dir" in stand.snapshot().events.actions_trouble
    stand.memory.opened = True
    assert [one.outcome for one in stand.until(1)] == [ActionOutcome.RAN]


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_an_agent_that_is_killed_does_nothing_twice(
    tmp_path: Path, spawner: Spawner, moment: str
) -> None:
    """`before`: it is stored and not begun; `while`: done, and nobody was told; `after`: told, and all was stored."""
    rules = settings(steps=counting(tmp_path))
    first = Stand(tmp_path, spawner, rules)
    first.stalls()
    if moment == "before":
        first.memory.stored = False
        first.tick()
        first.tick()
    elif moment == "while":
        first.desk.tick({})
        first.desk.tick({})
        wait_until(lambda: counted(tmp_path) == 1)  # and nobody reads its inbox any more
    else:
        first.until(1)
    kept, memory = counted(tmp_path), first.memory
    memory.stored = True
    second = Stand(tmp_path, spawner, rules, memory)
    second.registry.restore(first.registry.all())
    lines = second.until(1)
    assert [one.outcome for one in lines] == [
        ActionOutcome.RAN if moment == "after" else ActionOutcome.INTERRUPTED
    ]
    assert counted(tmp_path) == kept


# --- signals -------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def rank(pid: int, ticks: int | None = None, number: int = 2) -> RankIdentity:
    known = Host().brief(pid)
    assert known is not None
    ticks = known.start_ticks if ticks is None else ticks
    return RankIdentity(rank=number, world_size=4, pid=pid, start_ticks=ticks, node="node1")


def blamed(pid: int, kind: Any = "rank", node: str = "node1", rank: int = 2) -> Culprit:
    return Culprit(kind=kind, rank=rank, node=node, pid=pid, reason="stopped")


def work(*ranks: RankIdentity, starter: Any = None, **facts: Any) -> ActionInput:
    words = {"id": "i", "key": "incident/R1", "kind": "stall", "severity": "critical"}
    words |= {"node": "node1", "sentence": "s", "subject": "s", "confidence": "high"}
    action_facts = ActionFacts(state="firing", started="2026-01-01T00:00:00Z", **{**words, **facts})
    job = Job(id=RUN, name="train.py", launcher="torchrun", ranks=ranks, uid=os.getuid())
    return ActionInput(action_facts, job, "node1", starter, Host(), lambda _: "R1")


def test_the_culprit_gets_the_signal(sleeper: "subprocess.Popen[bytes]") -> None:
    plan = signal.create(signal.Options()).plan(
        work(rank(sleeper.pid), blamed=(blamed(sleeper.pid),))
    )
    assert sleeper.poll() is None
    did = plan.do()
    assert sleeper.wait(30) == -signals.SIGTERM
    assert did.words == f"sent SIGTERM to rank 2 (pid {sleeper.pid})"


def test_a_pid_that_was_reused_is_not_hit(sleeper: "subprocess.Popen[bytes]") -> None:
    old = rank(sleeper.pid, ticks=rank(sleeper.pid).start_ticks - 1)
    plan = signal.create(signal.Options(to="ranks")).plan(work(old))
    with pytest.raises(UnfitError, match="its number was reused"):
        plan.do()
    with pytest.raises(UnfitError, match="its number was reused"):
        signal.held(rank(sleeper.pid, ticks=0), Host())
    assert sleeper.poll() is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"confidence": "medium"}, "confidence is medium"),
        ({"confidence": ""}, "confidence is unknown"),
        ({"blamed": ()}, "0 ranks on this node are blamed"),
        ({"blamed": (blamed(1),)}, "0 ranks"),  # none of the run's ranks
        ({"rank": 3}, "0 ranks"),  # the pid was reused by another rank of the next attempt
        ({"node": "elsewhere"}, "0 ranks"),
        ({"kind": "worker"}, "0 ranks"),
    ],
)
def test_a_signal_goes_to_ranks_of_that_run_alone(
    sleeper: "subprocess.Popen[bytes]", facts: Mapping[str, Any], why: str
) -> None:
    more = dict(facts)
    if {"node", "kind", "rank"} & more.keys():
        more = {"blamed": (blamed(sleeper.pid, **more),)}
    difference = {"blamed": (blamed(sleeper.pid),)} | more
    with pytest.raises(UnfitError, match=why):
        signal.create(signal.Options()).plan(work(rank(sleeper.pid), **difference))


# --- the log, the configuration ------------------------------------------------------------------


def test_the_audit_log_is_bounded_and_closed_to_others(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST", 2000)
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path), cooldown=0.0, hourly=1))
    for number in range(30):
        stand.stalls(key=f"incident/{number}")
        stand.tick()

    def rolled() -> bool:
        stand.tick()
        return (tmp_path / audit.BEFORE).exists() and not stand.desk.workers[1].busy

    wait_until(rolled)
    for name in (audit.FILE, audit.BEFORE):
        assert (tmp_path / name).stat().st_size <= 2000
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_an_audit_log_that_cannot_be_written_is_told(tmp_path: Path, spawner: Spawner) -> None:
    (tmp_path / audit.FILE).symlink_to(tmp_path / "elsewhere")
    stand = Stand(tmp_path, spawner, settings(steps=counting(tmp_path)))
    stand.stalls()

    def reported() -> bool:
        stand.tick()
        return "cannot be written" in stand.snapshot().events.actions_trouble

    wait_until(reported)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("chains: {stall: [stop]}", "'stop', which is no step"),
        ("steps: {a: {kind: capture}}\n  chains: {stall: [a, a]}", "twice"),
        ("allow: [capture]", "allow"),
        ("steps: {a: {kind: command, argv: [date]}}", "absolute path"),
        ("steps: {a: {kind: webhook}}", "url"),
        ("steps: {a: {kind: signal, signal: SIGSEGV}}", "SIGTERM"),
        ("steps: {a: {kind: reboot}}", "scancel"),
    ],
)
def test_a_config_that_cannot_work_is_named_at_once(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f"actions:\n  {text}\n", "x.yaml", Config)


def test_without_a_config_nothing_is_done() -> None:
    assert ActionsConfig() == Config().actions
    assert (ActionsConfig().chains, ActionsConfig().allow) == ({}, ())
    harmful = {
        name for name in names("actions")
        if create("actions", name).harms
    }  # fmt: skip
    assert harmful == {"command", "signal", "scancel", "drain"}


def test_the_environment_holds_single_lines() -> None:
    result = environment(work().facts)
    assert all("\n" not in value and "\0" not in value for value in result.values())
    assert result["MLDEBUG_CONFIDENCE"] == "high"
