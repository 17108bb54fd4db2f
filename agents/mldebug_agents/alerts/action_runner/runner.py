"""Runs chains of actions in the main loop: an event that fires gets its chain, one step runs after the other, each decision is
logged.

A step that may harm is stored as begun before it runs, and never run again: if the agent is killed meanwhile, nobody knows whether
it was done. Belongs to the main loop's thread; actions block only in workers.
"""

import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from mldebug import __version__
from mldebug.alerts.action_model import (
    ActionDecision,
    ActionFacts,
    ActionOutcome,
    UnfitError,
    facts_of,
)
from mldebug.alerts.event_registry import EventRegistry
from mldebug.alerts.model import AlertEvent
from mldebug.alerts.rate_limits import NODE, ActionRateLimits, PastAction
from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug.core.plugin_options import Plugin
from mldebug.core.redact import safe_line
from mldebug.jobs.owners import Owner, in_turns
from mldebug.status.snapshot import Snapshot
from mldebug_agents.alerts.action_runner.audit import ActionCounts, AuditLog
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.alerts.action_runner.chains import (
    ActionChain,
    action_of,
    as_it_was,
    chain_of,
    is_over,
    refusal,
    several_owners,
)
from mldebug_agents.alerts.action_runner.model import ActionInput, ActionResult, ProgramError
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.context import Context
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

WORKER, HANDS = "actions", 4
DEADLINE = 660.0  # seconds; a command may take ten minutes
ROW, LIMITS = "action:", "actions-past"
STORED_WITHIN = 60.0  # seconds for a step that may harm to be on disk, else it is refused
CAPTURED_WITHIN = 90.0
AT_ONCE = 64  # steps that are ordered


class ActionStep(NamedTuple):
    """An order to the worker: plan one action, and carry it out unless `against` gives a reason not to, or `dry` is set."""

    chain: ActionChain
    plugin: Plugin
    work: ActionInput
    against: str = ""
    dry: bool = False
    since: Callable[[], str] = str  # what is against it by now; "": nothing
    owner: Owner = NODE  # of the job that it concerns


class StepResult(NamedTuple):
    """How a step of an action ended."""

    outcome: ActionOutcome
    words: str
    code: int | None = None
    seconds: float = 0.0


class ActionRunner:
    """Runs the configured actions for the events of this agent. For the main loop's thread; actions run in workers."""

    def __init__(
        self,
        config: Config,
        context: Context,
        captures: CaptureRequests,
        store: StateStore,
        registry: EventRegistry,
        inbox: "queue.SimpleQueue[Result | None]",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._context, self._state_store, self._registry, self._now = context, store, registry, now
        self._settings, self._link = config.actions, config.events.link
        self.captures = captures
        self._audit = AuditLog(config.agent.state_dir, inbox)
        self._worker = Worker(
            WORKER, carry_out, inbox, DEADLINE, HANDS, owner_key=lambda step: step.owner
        )
        self._limits = ActionRateLimits()
        self._tally = ActionCounts()
        self._chains: dict[str, ActionChain] = {}  # by key of the event
        self._under_way: set[str] = set()
        self._waiting: dict[str, float] = {}  # key -> since when its step waits for the disk
        self._restored = False
        self.workers = (self.captures.worker, self._audit.worker, self._worker)

    def reload(self, config: Config) -> None:
        """Use this configuration from now on. Chains that have begun keep their steps."""
        self._settings, self._link = config.actions, config.events.link

    # --- the loop ----------------------------------------------------------------------------------

    def tick(self, jobs: Mapping[str, Job]) -> None:
        """Begin chains of actions for new events and go on with the others. Does nothing before the state of an earlier
        agent was read.
        """
        self._audit.tick()
        if not self._restored:
            if not self._state_store.opened:
                return
            self._restore()
        self._forget()
        for event in self._registry.firing():
            known = self._chains.get(event.key)
            if not is_over(event) and (known is None or known.started != event.started):
                self._begin(event)
        for key, chain in in_turns(self._chains.items(), lambda one: self._owner(one[0])):
            known_event = self._registry.get(key)
            if len(self._under_way) >= AT_ONCE:
                return
            if known_event is not None and not chain.over and key not in self._under_way:
                self._advance(chain, known_event, jobs)

    def on_result(self, result: Result) -> bool:
        """Handle a worker's result. Returns False where it comes from a worker that does not run actions."""
        if result.worker == self._audit.worker.name:
            self._audit.on_result(result)
        elif result.worker == self._worker.name:
            step: ActionStep = result.order
            came: StepResult = result.value or StepResult(ActionOutcome.FAILED, str(result.error))
            self._under_way.discard(step.chain.key)
            self._decide(step.chain, step.plugin, came, step.work.facts)
        return result.worker in {worker.name for worker in self.workers}

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the decisions, the counts of each action and the state of the workers added."""
        steps = self._settings.steps
        states = tuple(self._tally.state(name, one.kind) for name, one in steps.items())
        events = msgspec.structs.replace(
            snapshot.events, actions=states, actions_trouble=self._trouble()
        )
        used = self.workers if states else self.captures.used
        workers = tuple(one.state() for one in used)
        return msgspec.structs.replace(
            snapshot, events=events, sources=(*snapshot.sources, *workers)
        )

    def _trouble(self) -> str:
        if self._settings.chains and not self._restored:
            return "nothing is done before the state dir answers: it tells what was done already"
        return safe_line(self._audit.trouble, 200)

    # --- one step ----------------------------------------------------------------------------------

    def _begin(self, event: AlertEvent) -> None:
        chain = chain_of(event, self._settings)
        if chain is not None:
            self._keep(chain)

    def _advance(self, chain: ActionChain, event: AlertEvent, jobs: Mapping[str, Job]) -> None:
        plugin = self._settings.steps.get(chain.step)
        facts = facts_of(event, self._context.node, self._link, __version__)
        if plugin is None:
            result = StepResult(ActionOutcome.REFUSED, "the config does not name it any more")
            self._decide(chain, None, result, facts)
            return
        job, harms = jobs.get(facts.labels.get("run", "")), action_of(plugin).harms
        others = tuple(one for one in jobs.values() if one is not job)
        work = self._work(facts, as_it_was(job, event) if harms else job, others)
        owner = event.alert.share
        order = ActionStep(chain, plugin, work, since=lambda: self._since(chain), owner=owner)
        against = (
            (refusal(chain, event, self._settings) or several_owners(work.job)) if harms else ""
        )
        if against or self._settings.dry_run:
            self._order(order._replace(against=against, dry=self._settings.dry_run))
        elif chain.begun:
            self._go(order, facts, harms=harms)
        elif why := self._limited(chain.step, facts, owner):
            self._decide(chain, plugin, StepResult(ActionOutcome.REFUSED, why), facts)
        else:
            now, rules = self._now(), self._settings
            self._limits.note(chain.step, subject_of(facts), now, rules.cooldown, owner)
            self._state_store.remember(LIMITS, msgspec.json.encode(self._limits.past))
            self._waiting[chain.key] = time.monotonic()
            self._keep(chain.begin())

    def _go(self, order: ActionStep, facts: ActionFacts, *, harms: bool) -> None:
        """It was to be stored as begun: once it is, it is done. What cannot harm waits for no disk."""
        chain = order.chain
        stored = self._state_store.is_stored(ROW + chain.key) and self._state_store.is_stored(
            LIMITS
        )
        waited = time.monotonic() - self._waiting.setdefault(chain.key, time.monotonic())
        if stored or not harms:
            self._order(order)
        elif waited > STORED_WITHIN:
            why = f"it could not be written down in {STORED_WITHIN:g} s, so it must not be done"
            self._decide(chain, order.plugin, StepResult(ActionOutcome.REFUSED, why), facts)

    def _order(self, step: ActionStep) -> None:
        if self._worker.order(step):  # else at the next turn
            self._under_way.add(step.chain.key)

    def _since(self, chain: ActionChain) -> str:
        """Asked in the worker, just before it is done: an order may have waited for minutes. Reads what is only ever replaced."""
        settings = self._settings
        against = refusal(chain, self._registry.get(chain.key), settings)
        return against or ("actions.dry_run is on by now" if settings.dry_run else "")

    def _owner(self, key: str) -> Owner:
        event = self._registry.get(key)
        return event.alert.share if event is not None else NODE

    def _limited(self, step: str, facts: ActionFacts, owner: Owner) -> str:
        rules = self._settings
        return self._limits.refusal(
            step, subject_of(facts), self._now(), rules.cooldown, rules.hourly, owner
        )

    def _work(self, facts: ActionFacts, job: Job | None, others: tuple[Job, ...]) -> ActionInput:
        context = self._context
        return ActionInput(
            facts, job, context.node, context.spawner, context.host, self._capture, others
        )

    def _capture(self, job: Job) -> str:
        """In a worker."""
        try:
            return self.captures.ask(job.id, job).report.result(CAPTURED_WITHIN)
        except TimeoutError:
            raise MldebugError(f"the capture did not come in {CAPTURED_WITHIN:g} s") from None

    def _decide(
        self, chain: ActionChain, plugin: Plugin | None, result: StepResult, facts: ActionFacts
    ) -> None:
        """That step is over: count it, write it down, go on."""
        words = safe_line(result.words, 400)
        decision = ActionDecision(
            at=datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            action=chain.step,
            kind=plugin.kind if plugin else "",
            event=facts.key,
            event_id=facts.id,
            event_kind=facts.kind,
            outcome=result.outcome,
            why=words,
            run=facts.labels.get("run", ""),
            code=result.code,
            seconds=round(result.seconds, 3),
        )
        level = logging.ERROR if result.outcome is ActionOutcome.FAILED else logging.WARNING
        log.log(level, "action %s for %s: %s: %s", chain.step, facts.key, result.outcome, words)
        self._tally.count(decision, self._now())
        self._audit.write(decision)
        bad = result.outcome in (ActionOutcome.FAILED, ActionOutcome.INTERRUPTED)
        self._waiting.pop(chain.key, None)
        self._keep(chain.next(failed=bad))

    # --- memory ------------------------------------------------------------------------------------

    def _keep(self, chain: ActionChain) -> None:
        self._chains[chain.key] = chain
        self._state_store.remember(ROW + chain.key, msgspec.json.encode(chain))

    def _forget(self) -> None:
        for key in [chain for chain in self._chains if self._registry.get(chain) is None]:
            if key not in self._under_way:
                del self._chains[key]
                self._state_store.remember(ROW + key, b"")

    def _restore(self) -> None:
        self._restored = True
        self._limits = ActionRateLimits(_past(self._state_store.memo(LIMITS)))
        for chain in _stored(self._state_store):
            self._chains[chain.key] = chain
            event = self._registry.get(chain.key)
            if chain.begun and not chain.over and event is not None:
                self._interrupted(chain, event)

    def _interrupted(self, chain: ActionChain, event: AlertEvent) -> None:
        plugin = self._settings.steps.get(chain.step)
        if plugin is not None and not action_of(plugin).harms:
            return  # it is done again
        facts = facts_of(event, self._context.node, self._link, __version__)
        why = "the agent ended while it ran: whether it was done is not known, and it is not done again"
        self._decide(chain, plugin, StepResult(ActionOutcome.INTERRUPTED, why), facts)


def carry_out(step: ActionStep) -> StepResult:
    """Plan one action in a worker thread, and do it unless the step says not to. Never raises: errors become its outcome."""
    began = time.monotonic()
    code = None
    try:
        action = action_of(step.plugin)
        plan = action.plan(step.work)
        if step.against or step.dry:
            why = f"{step.against}; it would" if step.against else "it would"
            outcome = ActionOutcome.REFUSED if step.against else ActionOutcome.DRY_RUN
            return StepResult(outcome, f"{why}: {plan.words}", None, time.monotonic() - began)
        if action.harms and (why := step.since()):
            raise UnfitError(f"it waited, and by now {why}: {plan.words}")
        did: ActionResult = plan.do()
        outcome, words, code = ActionOutcome.RAN, did.words, did.code
    except UnfitError as error:
        outcome, words = ActionOutcome.REFUSED, f"{step.against}; {error}".removeprefix("; ")
    except ProgramError as error:
        outcome, words, code = ActionOutcome.FAILED, error.message, error.code
    except MldebugError as error:
        outcome, words = ActionOutcome.FAILED, error.message
    except Exception as error:  # noqa: BLE001 - whatever an action does, its chain is told
        outcome, words = ActionOutcome.FAILED, str(error) or type(error).__name__
    return StepResult(outcome, words, code, time.monotonic() - began)


def subject_of(facts: ActionFacts) -> str:
    """Return the key by which cool-downs are kept apart: the run that the event concerns, or the event's own key where it
    concerns no run.
    """
    return facts.labels.get("run") or facts.key


def _past(stored: bytes) -> tuple[PastAction, ...]:
    try:
        return msgspec.json.decode(stored, type=tuple[PastAction, ...]) if stored else ()
    except msgspec.DecodeError:
        log.warning("what actions have run cannot be read, and is forgotten")
        return ()


def _stored(store: StateStore) -> Iterator[ActionChain]:
    for name in store.memos(ROW):
        try:
            yield msgspec.json.decode(store.memo(name), type=ActionChain)
        except msgspec.DecodeError:
            log.warning("a chain of actions that was stored cannot be read")
