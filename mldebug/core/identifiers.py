"""Finds names of people and servers in free text: mounts, kernel messages about file servers, logins, home folders."""

import re
from collections.abc import Iterator

Name = tuple[str, str]  # kind ("user", "node", "domain"), name

_WORD = r"[a-z][\w.-]{2,63}"
_PERSON = re.compile(
    rf"\b(?:accepted|failed) [\w/-]{{1,30}} for (?:invalid user )?(?P<login>{_WORD}) from\b"
    rf"|\bsession (?:opened|closed) for user (?P<session>{_WORD})"
    rf"|\busername=(?P<given>{_WORD})"
    rf"|(?<![\w/.~])~(?P<tilde>{_WORD})/"
    rf"|/(?:users|people|homes)/(?P<folder>{_WORD})(?=/)",
    re.IGNORECASE,
)
_SERVER = re.compile(
    r"\bnfs[34]?: server (?P<nfs>[\w.-]{1,250})|\bcifs:[^\n]{0,60}?(?:\\{2,4}|//)(?P<cifs>[\w.-]{1,250})",
    re.IGNORECASE,
)
_MOUNT = re.compile(
    r" - (?:nfs4?|cifs|smb3|lustre|ceph|glusterfs|beegfs|fuse\.\w{1,20})"
    r" (?P<source>\S{1,1000}+) (?P<options>\S{1,2000}+)"
)
_OPTION = re.compile(r"(?:^|,)(?P<name>user|username|domain)=(?P<value>[^,]+)")
_FABRIC = re.compile(r"(?:tcp|o2ib|kfi)\d*")  # of Lustre: 10.1.2.3@o2ib


def names_in(text: str) -> Iterator[Name]:
    """Names of users, nodes and domains that stand in recognisable places of the text, as (kind, name)."""
    for match in _PERSON.finditer(text):
        yield "user", match[match.lastgroup or 0]
    for match in _SERVER.finditer(text):
        yield "node", match[match.lastgroup or 0].rstrip(".")
    for line in text.split("\n"):
        if mount := _MOUNT.search(line):
            yield from _of_source(mount["source"])
            for option in _OPTION.finditer(line, mount.start("options")):
                yield "domain" if option["name"] == "domain" else "user", option["value"]


def _of_source(source: str) -> Iterator[Name]:
    """`filer:/x`, `//server/share`, `user@host:/x`, `mon1:6789,mon2:6789:/`, `10.1.2.3@tcp:/fs`."""
    if source.startswith("//"):
        yield "node", source[2:].partition("/")[0]
        return
    servers, colon, _ = source.partition(":/")
    for one in servers.split(",") if colon else ():
        before, at, after = one.rpartition("@")
        if at and _FABRIC.fullmatch(after):
            before, after = "", before
        if before:
            yield "user", before
        yield "node", after.partition(":")[0]
