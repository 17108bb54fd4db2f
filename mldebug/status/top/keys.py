"""What the keys of `mldebug top` do: a state goes in, with a key; the next state comes out, and what is to be done. Pure."""

from typing import Literal, NamedTuple

import msgspec

Action = Literal["", "quit", "dump", "profile", "report"]
PAGE = 10  # lines
HELP = (
    "up, down     choose a run",
    "PgUp, PgDn   scroll its ranks, or a text",
    "d            capture all ranks of the run now: mldebug dump",
    "p            profile a few steps of the run: mldebug profile",
    "o, Enter     the report of its open incident, or the newest one",
    "?            this help",
    "Esc          back",
    "q            quit",
)


class Pane(NamedTuple):
    """A text over the whole screen: what a command has printed."""

    title: str
    lines: tuple[str, ...]


class TopState(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has chosen. `run`: id of the chosen run, "" for the first; `busy`: the command that runs now."""

    run: str = ""
    scroll: int = 0
    pane: Pane | None = None
    message: str = ""
    busy: str = ""


class KeyResult(NamedTuple):
    """The next state, and what is to be done now."""

    state: TopState
    action: Action = ""


def press(state: TopState, key: str, runs: tuple[str, ...], longest: int) -> KeyResult:
    """A key was pressed. `runs`: ids in the order of the screen; `longest`: lines that can be scrolled at all."""
    state = msgspec.structs.replace(state, message="")
    if key == "q" and state.pane is None:
        return KeyResult(state, "quit")
    if key in ("q", "esc"):
        return KeyResult(msgspec.structs.replace(state, pane=None, scroll=0))
    if key == "?":
        pane = None if state.pane and state.pane.title == "Keys" else Pane("Keys", HELP)
        return KeyResult(msgspec.structs.replace(state, pane=pane, scroll=0))
    if key in ("pageup", "pagedown") or (state.pane is not None and key in ("up", "down")):
        return KeyResult(_scrolled(state, key, longest))
    if key in ("up", "down"):
        return KeyResult(_chosen(state, key, runs))
    actions: dict[str, Action] = {"d": "dump", "p": "profile", "o": "report", "enter": "report"}
    if (action := actions.get(key)) is None or state.pane is not None:
        return KeyResult(state)
    if not runs:
        return KeyResult(msgspec.structs.replace(state, message="there is no run to look at"))
    if state.busy:
        words = f"wait: {state.busy} is not done yet"
        return KeyResult(msgspec.structs.replace(state, message=words))
    return KeyResult(state, action)


def _scrolled(state: TopState, key: str, longest: int) -> TopState:
    far = PAGE if key.startswith("page") else 1
    to = state.scroll + (-far if key.endswith("up") else far)
    return msgspec.structs.replace(state, scroll=max(0, min(to, longest - 1)))


def _chosen(state: TopState, key: str, runs: tuple[str, ...]) -> TopState:
    if not runs:
        return state
    at = runs.index(state.run) if state.run in runs else 0
    to = max(0, min(at + (-1 if key == "up" else 1), len(runs) - 1))
    return msgspec.structs.replace(state, run=runs[to], scroll=0)
