"""Packs gathered files into one tar.gz that may be given to others: names of users, nodes and domains are replaced by pseudonyms."""

import contextlib
import gzip
import io
import os
import pwd
import socket
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mldebug.core.errors import AccessError, MldebugError, UsageError
from mldebug.core.model import Gap
from mldebug.incidents.pseudonyms import Pseudonyms
from mldebug_agents.support.bundle.layout import MANIFEST, Manifest

USERS = ("USER", "LOGNAME", "SUDO_USER")


def own_names() -> dict[str, tuple[str, ...]]:
    """Return the names of this node and user by kind: "node", "user"."""
    users = [os.environ.get(name, "") for name in USERS]
    with contextlib.suppress(KeyError):  # a container's user need not have a name
        users.append(pwd.getpwuid(os.geteuid()).pw_name)
    return {"node": (socket.gethostname(),), "user": tuple(filter(None, users))}


def redact_and_pack(
    files: Mapping[str, bytes],
    manifest: Manifest,
    folder: str,
    own: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[bytes, Manifest]:
    """Redact the files and pack them. Returns the bundle's bytes and the manifest inside it. `own`: names by kind."""
    names = Pseudonyms()
    for kind, found in (own_names() if own is None else own).items():
        names.learn(kind, *found)
    clean = redacted(files, names)
    gaps = names.value(msgspec.to_builtins(manifest.gaps))
    manifest = msgspec.structs.replace(
        manifest,
        gaps=msgspec.convert(gaps, tuple[Gap, ...]),
        files={name: len(content) for name, content in clean.items()},
        replaced=dict(names.counts),
    )
    return pack(clean, manifest, folder), manifest


def redacted(files: Mapping[str, bytes], names: Pseudonyms) -> dict[str, bytes]:
    """All files with names of users, nodes and domains replaced, in content and in file names."""
    read = {name: _read(name, content) for name, content in files.items()}
    for content in read.values():
        names.learn_from(content)
    return {names.text(name): _written(name, content, names) for name, content in read.items()}


def pack(files: Mapping[str, bytes], manifest: Manifest, folder: str) -> bytes:
    """The files as a tar archive, whose headers do not show which user made it."""
    everything = {MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=1), **files}
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in everything.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(manifest.ended_at)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(inner.getvalue(), mtime=int(manifest.ended_at))


def check(path: Path) -> None:
    """Check, before anything is recorded, that the file can be written. Raises UsageError where it exists or its folder
    does not, AccessError where this user may not write there.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", "give --out another name")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "give --out another place")
    if not os.access(path.parent, os.W_OK):
        raise AccessError(f"{path} cannot be written", "give --out another place")


def write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read. Raises UsageError where the name exists, AccessError where this user
    may not write there, MldebugError for other errors.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", "give --out another name") from error
    except PermissionError as error:
        raise AccessError(f"{path} cannot be written", "give --out another place") from error
    except OSError as error:
        raise MldebugError(
            f"{path} cannot be written: {error.strerror or error}", "give --out another place"
        ) from error


def _read(name: str, content: bytes) -> Any:
    """Decoded where it is data, so that fields are known; what is malformed is text."""
    try:
        if name.endswith(".json"):
            return msgspec.json.decode(content)
        if name.endswith(".jsonl"):
            return [msgspec.json.decode(line) for line in content.splitlines() if line]
        if name.endswith(".yaml"):
            return yaml.safe_load(content)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return content.decode(errors="replace")  # names are replaced in it all the same
    return content.decode(errors="replace")


def _written(name: str, content: Any, names: Pseudonyms) -> bytes:
    if isinstance(content, str):
        return names.text(content).encode(errors="replace")
    if name.endswith(".jsonl"):
        return b"".join(msgspec.json.encode(names.value(one)) + b"\n" for one in content)
    if name.endswith(".yaml"):
        return str(yaml.safe_dump(names.value(content), sort_keys=False)).encode()
    return msgspec.json.format(msgspec.json.encode(names.value(content)), indent=1) + b"\n"
