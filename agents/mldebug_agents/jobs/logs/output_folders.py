"""Folders into which a job writes that its command line does not name: those in a settings file on it, and those of its own logs.

`llamafactory-cli train sft.yaml` and its like name their `output_dir` in that file alone. The file is read with the rights of the rank's user,
a few kilobytes of it; what it names is a path like any other that a job names.
"""

import re
from collections.abc import Iterable, Iterator
from posixpath import dirname, join, normpath

from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.logs.locations import LogFile
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

MAX_SETTINGS = 128 << 10  # bytes of a settings file; a larger one is data
MAX_FILES = 2
MAX_NAMED = 3  # folders of one settings file
TIMEOUT = 1.0  # seconds for one file
_SETTINGS = (".yaml", ".yml", ".json", ".toml")
_FOLDER = re.compile(
    r"""(?:^|[{,])[\t ]{0,40}["']?(?:(?:[a-z]{1,20}_)?(?:output|save|work|log|logging|out|result|results|exp|run)_?(?:dir|path|folder))["']?\s{0,8}[:=]\s{0,8}["']?([^"'\s,#{}$]{1,300})""",
    re.MULTILINE | re.IGNORECASE,
)
_OUTPUTS = frozenset(("stdout", "stderr", "named"))


def settings_folders(host: Host, reader: Reader, rank: RankIdentity) -> tuple[str, ...]:
    """Folders that the settings files on the rank's command line name for its output, as the rank sees them."""
    cwd = host.link(rank.pid, "cwd") or "/"
    files = [normpath(join(cwd, one)) for one in rank.argv[1:] if one.lower().endswith(_SETTINGS)]
    found: dict[str, None] = {}
    for file in list(dict.fromkeys(files))[:MAX_FILES]:
        found |= dict.fromkeys(_named(host, reader, rank, file, cwd))
    return tuple(found)


def _named(host: Host, reader: Reader, rank: RankIdentity, file: str, cwd: str) -> Iterator[str]:
    path, rights = f"{host.root_of(rank.pid)}{file}", host.rights.of(rank)
    data = reader.read_file(path, rights=rights, max_bytes=MAX_SETTINGS, timeout=TIMEOUT)
    if isinstance(data, bytes):
        folders = (normpath(join(cwd, one)) for one in folders_in(data.decode(errors="replace")))
        yield from (one for one in folders if _usable(one))


def folders_in(text: str) -> tuple[str, ...]:
    """The folders that the text of a settings file (YAML, JSON, TOML) names for output, in its order, at most `MAX_NAMED`."""
    return tuple(dict.fromkeys(_FOLDER.findall(text)))[:MAX_NAMED]


def log_folders(places: Iterable[LogFile]) -> tuple[str, ...]:
    """The folders in which a rank's own output lies: charts are often written beside it."""
    found = (dirname(one.target) for one in places if one.kind in _OUTPUTS)
    return tuple(dict.fromkeys(one for one in found if _usable(one)))


def _usable(path: str) -> bool:
    return procfs.is_stored(path) and dirname(path) != path
