"""Actions that may follow an event, one file each."""

from mldebug_agents.alerts.action_runner.model import Action

__all__ = ["Action"]
