"""The answer of `mldebug usage` as lines of at most 80 columns. Pure."""

from collections.abc import Iterator

from mldebug.core.redact import clean
from mldebug.core.text import plural
from mldebug.core.units import duration_words, size_words
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.usage.model import CountedTree, OldCheckpoint, StorageUsage

MOST = 10  # rows of one table
MOST_TOLD = 4
PATH = 44  # columns
_STATES = {
    Completeness.COMPLETE: "whole",
    Completeness.INCOMPLETE: "not whole",
    Completeness.UNKNOWN: "cannot tell",
    Completeness.WRITING: "being written",
}


def usage_lines(found: StorageUsage) -> Iterator[str]:
    """The lines that `mldebug usage` prints: how far it has counted, the bytes of each user, large folders, and checkpoints that could be deleted."""
    for tree in found.trees:
        yield from _tree(tree)
    if not found.users:
        return
    yield ""
    yield f"{'User':<{PATH}} {'Size':>11} {'Inodes':>11}"
    for user in found.users[:MOST]:
        yield _row(user.user, user.bytes, user.inodes)
    yield from _more(len(found.users), "user")
    yield ""
    yield f"{'Folder':<{PATH}} {'Size':>11} {'Inodes':>11} User"
    for folder in found.folders[:MOST]:
        others = f" +{folder.others}" if folder.others else ""
        yield f"{_row(folder.path, folder.bytes, folder.inodes)} {clean(folder.user, 11 - len(others))}{others}"
        for run in folder.runs[:MOST_TOLD]:
            yield f"    written by {clean(run, 60)}"
    yield from _more(len(found.folders), "folder")
    yield ""
    yield from _checkpoints(found)
    for note in found.notes[:MOST]:
        yield f"Not known: {clean(note, 200)}"


def _tree(tree: CountedTree) -> Iterator[str]:
    if tree.trouble:
        yield f"{clean(tree.path, 120)}: not counted: {clean(tree.trouble, 200)}"
        return
    yield f"{clean(tree.path, 120)}: {size_words(tree.bytes)} in {tree.inodes:,} inodes{_filesystem(tree)}"
    if not tree.finished:
        yield f"  counted {tree.inodes:,} inodes in {_seconds(tree.seconds)}; {clean(tree.stopped_by, 160)}"
        for path in tree.unfinished[:MOST_TOLD]:
            yield f"  not finished: {clean(path, 200)}"
        if len(tree.unfinished) > MOST_TOLD:
            yield "  … and more: name one of them, or give --seconds and --inodes more"
    if tree.unreadable:
        yield f"  {tree.unreadable:,} of its names cannot be looked at by this user: it is at least so much"
    if tree.too_deep:
        yield f"  {tree.too_deep:,} folders lie too deep, and are not counted"
    for path in tree.other_filesystems[:MOST_TOLD]:
        yield f"  another filesystem, not entered: {clean(path, 200)}"


def _filesystem(tree: CountedTree) -> str:
    if tree.size is None or tree.left is None:
        return ""
    inodes = f", {tree.inodes_left:,} inodes" if tree.inodes_left is not None else ""
    return f"; {size_words(tree.left)}{inodes} left on its filesystem"


def _seconds(seconds: float) -> str:
    return duration_words(round(seconds, 1) or 0.1)


def _row(name: str, size: int, inodes: int) -> str:
    return f"{_cut(name):<{PATH}} {size_words(size):>11} {inodes:>11,}"


def _cut(path: str) -> str:
    """The end of a path says more than its beginning."""
    path = clean(path, 400)
    return path if len(path) <= PATH else f"…{path[1 - PATH :]}"


def _more(count: int, what: str) -> Iterator[str]:
    if count > MOST:
        yield f"  and {plural(count - MOST, f'more {what}')}: --json has all"


def _checkpoints(found: StorageUsage) -> Iterator[str]:
    if not found.series:
        yield "No checkpoint was found there."
        return
    yield "If the newest N whole checkpoints of each series stay, the others free:"
    for one in found.retention:
        many = plural(one.checkpoints, "checkpoint")
        yield f"  N = {one.keep:<4} {size_words(one.frees):>11}  {many}"
    old = found.could_go
    if old:
        yield f"With --keep {found.keep}, the largest first:"
        yield from (_old(one, found.now) for one in old[:MOST])
        yield from _more(len(old), "checkpoint")
        oldest = min(old, key=lambda one: one.checkpoint.ended)
        yield f"The oldest: {clean(oldest.path, 200)}"
    else:
        yield f"With --keep {found.keep} none could go."
    for needed in found.needed[:MOST_TOLD]:
        yield f"Stays: {clean(needed.path, 200)}"
        yield f"  {clean(needed.why, 78)}"
    if (rest := len(found.needed) - MOST_TOLD) > 0:
        yield f"  and {rest} more that must stay: --json has all"
    for path in found.without_whole[:MOST_TOLD]:
        yield f"None is whole, so none could go: {clean(path, 200)}"
    yield "Nothing was deleted."


def _old(one: OldCheckpoint, now: float) -> str:
    age = duration_words(int(now - one.checkpoint.ended))
    least = "" if one.frees == one.bytes else f" of {size_words(one.bytes)}"
    return f"{_cut(one.path):<{PATH}} {size_words(one.frees):>11} {age:>10} {_STATES[one.checkpoint.state]}{least}"
