"""The chain of actions for one event, as it is stored: steps that were done stay done, even if the agent is restarted."""

import msgspec

from mldebug.alerts.model import AlertEvent, EventState
from mldebug.config.schema import ActionsConfig
from mldebug.core.model import Job, MeasuredData
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create
from mldebug_agents.alerts.action_runner.model import Action

RECOVERED = "recovered"  # an outcome of an event
SLACK = 2.0  # seconds, between the clock and the kernel's count of time since the boot


class ActionChain(MeasuredData, frozen=True, kw_only=True):
    """The actions for one event, in order, as the configuration named them when the event began, and which of them is next."""

    key: str  # of the event
    started: float  # of the event: with its key this tells one event from the next
    steps: tuple[str, ...]
    at: int = 0  # the step that is next
    begun: bool = False  # that one may have been done
    failed: str = ""  # the first step that has failed

    @property
    def over(self) -> bool:
        """Whether no step is left to do."""
        return self.at >= len(self.steps)

    @property
    def step(self) -> str:
        """The name of the action that the chain takes next."""
        return self.steps[self.at]

    def begin(self) -> "ActionChain":
        """The chain with its next step marked as begun. It is stored before the step runs, so that an agent that is killed
        meanwhile does not run it again.
        """
        return msgspec.structs.replace(self, begun=True)

    def next(self, *, failed: bool) -> "ActionChain":
        """The chain moved on by one step. `failed`: that step failed; the first such step is remembered."""
        first = self.failed or (self.step if failed else "")
        return msgspec.structs.replace(self, at=self.at + 1, begun=False, failed=first)


def chain_of(event: AlertEvent, settings: ActionsConfig) -> ActionChain | None:
    """The chain that the configuration wants for this event (`actions.chains`, by kind, else "*"); None where there is none."""
    steps = settings.chains.get(event.alert.kind, settings.chains.get("*", ()))
    return ActionChain(key=event.key, started=event.started, steps=steps) if steps else None


def action_of(plugin: Plugin) -> Action:
    """The action that this plugin creates, with its configured options."""
    made: Action = create("actions", plugin.kind, plugin.options)
    return made


def is_over(event: AlertEvent) -> bool:
    """Whether nothing should be done about the event any more: it has ended. An event without duration, such as a job's exit,
    counts as going on for `alert.stands` seconds, unless the job recovered.
    """
    stands = event.alert.stands > 0 and event.outcome != RECOVERED
    return event.state is not EventState.FIRING or (event.ended is not None and not stands)


def refusal(chain: ActionChain, event: AlertEvent | None, settings: ActionsConfig) -> str:
    """Why a step that may do harm must not run in the present state of event and chain; "" where it may."""
    if event is None or event.started != chain.started or is_over(event):
        return "the event is over"
    if chain.failed:
        return f"the step {chain.failed} before it has failed"
    plugin = settings.steps.get(chain.step)
    if plugin is None:
        return "the config does not name it any more"
    return "" if plugin.kind in settings.allow else f"actions.allow does not name {plugin.kind}"


def as_it_was(job: Job | None, event: AlertEvent) -> Job | None:
    """The job, if all its ranks on this node were started before the event fired; None where it is gone or a rank is newer,
    since the event is not about new processes.
    """
    fired = event.fired
    if job is None or event.ended is not None or fired is None:
        return None
    return job if all(rank.started_at <= fired + SLACK for rank in job.ranks) else None


def several_owners(job: Job | None) -> str:
    """Why no harmful action is allowed on this job: its ranks are in several containers, and one may belong to another user.
    "" where all are in one.
    """
    places = {rank.container for rank in job.ranks} if job is not None else set()
    return (
        "its ranks are in several containers, of which one may be somebody else's"
        if len(places) > 1
        else ""
    )
