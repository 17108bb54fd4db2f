"""A POST of the facts to an address of your own, at its place in the chain."""

from collections.abc import Iterator
from typing import Any

from mldebug.alerts.http_options import HttpOptions
from mldebug.core.plugins import create as create_plugin
from mldebug.core.plugins import load
from mldebug_agents.alerts.action_runner.model import Action, ActionInput, ActionPlan, ActionResult


class Options(HttpOptions, frozen=True, forbid_unknown_fields=True):
    """The address to POST to and the credentials; the same options as the channel `webhook`."""


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Problems of the options, as (option, what is wrong): the same as of the channel `webhook`."""
    yield from load("channels", "webhook").problems(options)


class WebhookAction:
    """Posts the channel's message with `confidence` and `blamed` added."""

    harms = False

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, work: ActionInput) -> ActionPlan:
        """A POST of the event's facts to the configured address."""
        channel: Any = create_plugin("channels", "webhook", self._options)

        def post() -> ActionResult:
            channel.send(work.facts)
            return ActionResult("posted the facts")

        return ActionPlan("post the facts", post)


def create(options: Options) -> Action:
    """Build the action `webhook`: a POST of the facts to an address of your own, at its place in the chain."""
    return WebhookAction(options)
