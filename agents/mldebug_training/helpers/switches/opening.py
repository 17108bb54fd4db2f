"""How ranks at the store of torch.distributed agree on a key that no earlier launch has used there.

No value that all ranks of a launch know is unique to it: torchrun counts restarts on each node for itself, and may keep the store.
So the leading rank has a random token. A rank that needs it writes a random word of its own, and gets it back with the token. Below
`NAME/`: `asked` (number of requests, in all launches), `ask/NUMBER`, `told/NUMBER`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mldebug_training.helpers.switches.visits import StoreRequests


def new_token() -> str:
    """Return a random text by which ranks recognise one opening of a switch folder."""
    return os.urandom(8).hex()


def hand_out_token(
    visits: StoreRequests, name: str, token: str, enough: Callable[[], bool], longest: float
) -> None:
    """Answer every rank that requests the token, until `enough()` is true. Raises errors of the store, and LateError after
    `longest` seconds.
    """
    open_: set[int] = set()
    counted = 0

    def all_answered() -> bool:
        nonlocal counted
        if enough():  # who asks now is of a later launch
            return True
        count = visits.ask("add", f"{name}/asked", 0)
        open_.update(range(counted + 1, count + 1))
        counted = count
        for number in [one for one in open_ if visits.ask("check", [f"{name}/ask/{one}"])]:
            word = visits.ask("get", f"{name}/ask/{number}").decode("utf-8", "replace")
            visits.ask("set", f"{name}/told/{number}", f"{word} {token}")
            open_.discard(number)
        return False

    visits.until(all_answered, longest)


def request_token(visits: StoreRequests, name: str, longest: float) -> str:
    """Request the token of this launch of the job from the leading rank; it is the same on all ranks. Raises errors of the
    store, and LateError after `longest` seconds.
    """
    word = new_token()
    number = visits.ask("add", f"{name}/asked", 1)
    visits.ask("set", f"{name}/ask/{number}", word)

    def token() -> str:
        key = f"{name}/told/{number}"
        words = visits.ask("get", key).split() if visits.ask("check", [key]) else []
        return str(words[1].decode()) if words and words[0] == word.encode() else ""

    return visits.until(token, longest)
