"""Host lists as people write them: folded lists such as `node[1-40]`, and hostfiles of mpirun, DeepSpeed, Horovod, Slurm, PBS and LSF."""

import errno
import re
from pathlib import Path
from typing import NamedTuple

from mldebug.core.errors import UsageError
from mldebug.core.files import unreadable
from mldebug.core.ranksets import MAX_NODES, unfold_nodes

MAX_BYTES = 1 << 20
# Names that all folded lists of a text may stand for, each time one is named
MAX_NAMED = 4 * MAX_NODES
LEAST_PORT = 1024  # `node1:8` are slots; a number from here on, or 22, is a port

_SETTING = re.compile(
    r"(?:slots|max[-_]slots|ppn|np|gpus|cpus?|procs|weight|rack|binding|user|port|type)\s*=\s*\S+",
    re.IGNORECASE,
)
_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z_][\w.-]{0,63})@(?=[^@]))?(?P<name>[^:]+?)(?::(?P<number>\d{1,6}))?"
)


class NamedHosts(NamedTuple):
    """Host names in their order. `user` and `port`: what the list gives for ssh, else "" and 0."""

    names: tuple[str, ...]
    user: str = ""
    port: int = 0


def read_hosts(text: str) -> NamedHosts:
    """The hosts in a text: a folded list, lines of a hostfile, or the name of a hostfile (also `^file`, as clush writes it).

    Slot counts and comments are ignored, and a host that occurs several times counts once. Raises
    UsageError for a text that is no host list, for several users or ports in it, and for a file
    that cannot be read.
    """
    file = Path(text.removeprefix("^"))
    content = _content(file) if "\n" not in text and len(text) < 4096 else None
    if content is None:
        if text.startswith("^"):
            raise UsageError(f"there is no file {file}", "name a hostfile, or hosts: node[1-40,42]")
        return parse_hosts(text)
    try:
        return parse_hosts(content)
    except UsageError as error:
        raise UsageError(f"in the file {file}: {error.message}", error.way_out) from error


def _content(file: Path) -> str | None:
    """What stands in the file; None where there is none of that name."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1).decode(errors="replace")
    except ValueError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a long list
            return None
        raise unreadable(file, error) from error


def parse_hosts(text: str) -> NamedHosts:
    """The hosts that a text names, which may be a folded list or the lines of a hostfile. Raises UsageError for several users or
    ports, for more than a million characters, and for what is no host list.
    """
    if len(text) > MAX_BYTES:
        raise UsageError("the list of hosts has more than a million characters", "name fewer")
    found: dict[str, None] = {}
    users: set[str] = set()
    ports: set[int] = set()
    named = 0
    for word in dict.fromkeys(_words(text)):
        match = _HOST.fullmatch(word)
        user, name, number = match.groups() if match else (None, word, None)
        if user:
            users.add(user)
        if number and (int(number) == 22 or int(number) >= LEAST_PORT):
            ports.add(int(number))
        hosts = unfold_nodes(name) if set(name) & set("[@!&") else (name,)
        named += len(hosts)
        if named > MAX_NAMED:
            raise UsageError(f"the list of hosts names more than {MAX_NAMED:,}", "name fewer")
        found |= dict.fromkeys(hosts)
    ports |= {
        int(port) for port in re.findall(r"\bport\s*=\s*(\d{1,5})\b", _without_comments(text))
    }
    users |= set(re.findall(r"\buser\s*=\s*([\w.-]{1,64})", _without_comments(text)))
    if len(users) > 1 or len(ports) > 1:
        raise UsageError(
            f"the hosts have several {'users' if len(users) > 1 else 'ports'}, and ssh is called with one",
            "name them in ~/.ssh/config",
        )
    names = unfold_nodes(",".join(found)) if found else unfold_nodes("")
    return NamedHosts(names, next(iter(users), ""), next(iter(ports), 0))


def _without_comments(text: str) -> str:
    return re.sub(r"#[^\n]*", "", text.replace("\r", "\n"))


def _words(text: str) -> list[str]:
    """The hosts, each as it is written: without comments, settings (`slots=8`) and counts (`node1 8 node2 8`)."""
    words: list[str] = []
    for line in _without_comments(text).split("\n"):
        of_line = _outside_brackets(_SETTING.sub(" ", line)).split("\n")
        words += [
            word for index, word in enumerate(of_line) if word and not (index and word.isdigit())
        ]
    return words


def _outside_brackets(line: str) -> str:
    """The line with a line end for each run of blanks and commas that no `[…]` holds: before the next `]` another `[` comes, or none."""
    pieces = re.split(r"([\[\]])", line)
    following = [*pieces[1::2], ""]  # the bracket behind each text
    pieces[::2] = [
        text if bracket == "]" else re.sub(r"[\s,]+", "\n", text)
        for text, bracket in zip(pieces[::2], following, strict=True)
    ]
    return "".join(pieces).strip()
