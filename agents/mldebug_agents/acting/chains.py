"""The chain of one event, as it is stored: what has been done of it stays done, whoever comes after."""

import msgspec

from mldebug.config import Actions
from mldebug.events.model import Event, State
from mldebug.model import Noun
from mldebug.rooms import load
from mldebug.settings.plugins import Plugin
from mldebug_agents.acting.work import Action


class Chain(Noun, frozen=True, kw_only=True):
    """Steps as they were named when it began."""

    key: str  # of the event
    started: float  # of the event: with its key this tells one event from the next
    steps: tuple[str, ...]
    at: int = 0  # the step that is next
    begun: bool = False  # that one may have been done
    failed: str = ""  # the first step that has failed

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        return self.at >= len(self.steps)

    @property
    def step(self) -> str:
        """The name of the next one."""
        return self.steps[self.at]

    def begin(self) -> "Chain":
        """It is going to be done: stored before it is."""
        return msgspec.structs.replace(self, begun=True)

    def next(self, *, failed: bool) -> "Chain":
        """That step is decided."""
        first = self.failed or (self.step if failed else "")
        return msgspec.structs.replace(self, at=self.at + 1, begun=False, failed=first)


def chain_of(event: Event, settings: Actions) -> Chain | None:
    """What the config wants done about it; None: nothing."""
    steps = settings.chains.get(event.alarm.kind, settings.chains.get("*", ()))
    return Chain(key=event.key, started=event.started, steps=steps) if steps else None


def action_of(plugin: Plugin) -> Action:
    """The action itself."""
    made: Action = load("actions", plugin.kind).create(plugin.options)
    return made


def refusal(chain: Chain, event: Event, settings: Actions) -> str:
    """Why a step that may harm must not run, as the event and the chain stand; "" where it may."""
    if event.state is not State.FIRING or event.ended is not None:
        return "the event is over"
    if chain.failed:
        return f"the step {chain.failed} before it has failed"
    kind = settings.steps[chain.step].kind
    return "" if kind in settings.allow else f"actions.allow does not name {kind}"
