"""The chain of one event, as it is stored: what has been done of it stays done, whoever comes after."""

import msgspec

from mldebug.alerts.model import AlertEvent, EventState
from mldebug.config.schema import ActionsConfig
from mldebug.core.model import Job, Noun
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create
from mldebug_agents.alerts.action_runner.model import Action

RECOVERED = "recovered"  # an outcome of an event
SLACK = 2.0  # seconds, between the clock and the kernel's count of time since the boot


class ActionChain(Noun, frozen=True, kw_only=True):
    """Steps as they were named when it began."""

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
        """The name of the next one."""
        return self.steps[self.at]

    def begin(self) -> "ActionChain":
        """The chain with its next step marked as begun. It is stored so before the step runs, for an agent that dies meanwhile."""
        return msgspec.structs.replace(self, begun=True)

    def next(self, *, failed: bool) -> "ActionChain":
        """That step is decided."""
        first = self.failed or (self.step if failed else "")
        return msgspec.structs.replace(self, at=self.at + 1, begun=False, failed=first)


def chain_of(event: AlertEvent, settings: ActionsConfig) -> ActionChain | None:
    """What the config wants done about it; None: nothing."""
    steps = settings.chains.get(event.alert.kind, settings.chains.get("*", ()))
    return ActionChain(key=event.key, started=event.started, steps=steps) if steps else None


def action_of(plugin: Plugin) -> Action:
    """The action itself."""
    made: Action = create("actions", plugin.kind, plugin.options)
    return made


def is_over(event: AlertEvent) -> bool:
    """Is nothing to be done about it any more? The end of a job is over as it begins, and stands for a while."""
    stands = event.alert.stands > 0 and event.outcome != RECOVERED
    return event.state is not EventState.FIRING or (event.ended is not None and not stands)


def refusal(chain: ActionChain, event: AlertEvent | None, settings: ActionsConfig) -> str:
    """Why a step that may harm must not run, as the event and the chain stand; "" where it may."""
    if event is None or event.started != chain.started or is_over(event):
        return "the event is over"
    if chain.failed:
        return f"the step {chain.failed} before it has failed"
    plugin = settings.steps.get(chain.step)
    if plugin is None:
        return "the config does not name it any more"
    return "" if plugin.kind in settings.allow else f"actions.allow does not name {plugin.kind}"


def as_it_was(job: Job | None, event: AlertEvent) -> Job | None:
    """The run, where all its ranks here are as old as the event: processes that came since are not what it is about."""
    fired = event.fired
    if job is None or event.ended is not None or fired is None:
        return None
    return job if all(one.started_at <= fired + SLACK for one in job.ranks) else None
