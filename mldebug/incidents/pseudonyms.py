"""Replaces what names a machine, a person or a device; the same original always becomes the same word, so that texts can still be compared.

Secrets go first (`mldebug.core.redact`). Then: home folders, host, user and domain names that were learned, all hosts of
such a domain, UUIDs, serial numbers, MAC and IP addresses, GUIDs, mail addresses. A common word ("gpu", "train") is replaced
only where it stands in a field for names. Original values are kept in memory alone.

Names of people and servers are also found in free text: mounts, kernel messages about file servers, logins, home folders.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mldebug.core.redact import HIDDEN, redact, redact_argv

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


NODE_KEYS = frozenset({"node", "nodes", "host", "hostname", "nodename"})
USER_KEYS = frozenset({"user", "users", "username"})
SERIAL_KEYS = frozenset({"serial", "serial_number"})
COMMON = frozenset({
    "admin", "agent", "backup", "ceph", "cifs", "filer", "files", "lustre", "nas", "nfs", "storage", "app", "cluster", "compute", "container", "cpu", "cuda", "data", "daemon",
    "debian", "default", "gpu", "head", "host", "job", "kernel", "launcher", "linux", "local",
    "localhost", "login", "main", "master", "ml", "mldebug", "model", "nccl", "nobody", "node",
    "none", "null", "nvidia", "python", "rank", "ray", "root", "run", "runner", "server",
    "shared", "slurm", "system", "test", "tests", "torch", "torchrun", "train", "training",
    "ubuntu", "unknown", "user", "users", "vm", "watch", "worker", "workspace",
})  # fmt: skip
"""Names that are too common to be replaced in free text."""
OPEN = frozenset({"root", "nobody", "localhost", "unknown", "none"})
"""Names that identify nobody and are never replaced."""
SHORTEST = {"serial": 6}  # characters of what is learned; of a name two

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_PART = r"[^/\s\"'<>:;,|()\[\]{}\\]"
_HOME = re.compile(rf"/home/(?P<name>{_PART}+)(?P<rest>(?:/{_PART}*)*)")
_WHOLE_HOME = re.compile(r"/home/(?P<name>[^/\n:]+)(?P<rest>(?:/[^/\n:]*)*)")
_PACKAGES = re.compile(r"/(?:site|dist)-packages(?=/)")
_UUID = re.compile(
    r"(?P<whole>[0-9a-f]{8}([-_])[0-9a-f]{4}(?:\2[0-9a-f]{4}){2}\2[0-9a-f]{12})"
    r"|(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z])",
    re.IGNORECASE,
)
_SERIAL = re.compile(
    r"(?P<label>\b(?:serial[ _-]?(?:number|no)|serial|s/?n)(?:[\"']?\s{0,4}[:=#]\s{0,4}[\"']?|[ ](?=\d{8})))"
    r"(?P<value>(?=[\w.-]*\d)[\w.-]{4,})",
    re.IGNORECASE,
)
_MAC = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])", re.IGNORECASE)
_GUID = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![0-9a-f:])", re.IGNORECASE)
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IP6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:.])", re.IGNORECASE)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")


class Pseudonyms:
    """Replaces names (users, nodes, domains, folders in /home), ids (UUIDs, serial numbers, GUIDs) and addresses (IP,
    MAC, mail) by made-up ones, the same for the same original, and hides secrets. Learn all names first, then
    replace.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # by kind, how often something was replaced
        self._given: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()
        self._ours: set[str] = set()
        self._words: dict[str, str] = {}  # in lower case -> kind
        self._alike: dict[str, str] = {}  # a name -> pattern of its neighbours: node17 -> node\d+
        self._pattern: re.Pattern[str] | None = None

    # --- learning ----------------------------------------------------------------------------------

    def learn(self, kind: str, *names: str) -> None:
        """Note names of this kind, to be replaced wherever they stand. For a node also its domain, and node names that differ
        from it only in digits. Common words and very short names are ignored.
        """
        for name in names:
            word = name.strip().lower()
            if kind == "node" and _is_address(word):
                continue
            if kind == "node" and "." in word:
                short, _, domain = word.partition(".")
                self.learn("domain", domain)
                word = short
            if (
                len(word) >= SHORTEST.get(kind, 2)
                and word not in COMMON
                and word not in self._words
            ):
                self._words[word] = kind
                self._pattern = None
                if kind == "node" and len(word) >= 5 and re.search(r"\d", word):
                    self._alike[word] = re.sub(r"(?:\\d\+|\d)+", r"\\d+", re.escape(word))

    def learn_from(self, value: Any, key: str = "") -> None:
        """Learn the names in decoded JSON: by the keys under which they stand, and from home folders and recognisable places in
        texts. `key`: that of `value` itself.
        """
        if isinstance(value, dict):
            for name, item in value.items():
                self.learn_from(item, str(name))
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn_from(item, key)
        elif isinstance(value, str):
            kind = _kind_of(key)
            if kind:
                self.learn(kind, value)
            elif key == "master":
                self.learn("node", value.rpartition(":")[0])
            else:
                self.learn("user", *(match["name"] for match in _HOME.finditer(value)))
                for learned_kind, name in names_in(value):
                    self.learn(learned_kind, name)

    # --- replacing ---------------------------------------------------------------------------------

    def value(self, value: Any, key: str = "") -> Any:
        """Decoded JSON with the learned names, ids, addresses and secrets in its texts replaced. `key`: the key under which
        `value` stands.
        """
        if isinstance(value, dict):
            return {self._key(str(name)): self.value(item, str(name)) for name, item in value.items()}  # fmt: skip
        if isinstance(value, list | tuple):
            return [self.value(item, key) for item in self._options(value)]
        return self._string(value, key) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """The text with secrets hidden, and all learned names, ids and addresses replaced."""
        result = redact(text)
        if result != text:
            self.counts["secret"] += 1
        result = _HOME.sub(self._home, result)
        result = _MAIL.sub(lambda match: self._give("mail", match[0]), result)
        result = self._learned().sub(self._word, result)
        result = _UUID.sub(self._uuid, result)
        result = _SERIAL.sub(lambda m: m["label"] + self._give("serial", m["value"]), result)
        result = _MAC.sub(lambda match: self._give("mac", match[0]), result)
        result = _GUID.sub(lambda match: self._give("guid", match[0]), result)
        result = _IP6.sub(self._address, result)
        return _IP4.sub(self._address, result)

    def _options(self, items: Sequence[Any]) -> Sequence[Any]:
        """A command line in a list: the value that follows `--token` stands for itself."""
        if not all(isinstance(item, str) for item in items):
            return items
        pairs = list(zip(items, redact_argv(items), strict=True))
        self.counts["secret"] += sum(new == HIDDEN != old for old, new in pairs)
        return [HIDDEN if new == HIDDEN else old for old, new in pairs]

    def _key(self, name: str) -> str:
        return name if _FIELD.fullmatch(name) else self.text(name)

    def _string(self, text: str, key: str) -> str:
        if text == HIDDEN:
            return text
        kind = _kind_of(key)
        if kind and text and not (kind == "node" and _is_address(text)):
            return text if text.lower() in OPEN else self._named(kind, text)
        if redact_argv((f"--{key}={text}",)) == (f"--{key}={HIDDEN}",) and text:
            self.counts["secret"] += 1
            return HIDDEN
        if text.startswith("/home/") and (whole := _WHOLE_HOME.fullmatch(text)):
            return self._home(whole)
        return self.text(text)

    def _named(self, kind: str, text: str) -> str:
        if kind != "node":
            return self._give(kind, text)
        short, _, domain = text.partition(".")
        return self._give("node", short) + (f".{self._give('domain', domain)}" if domain else "")

    def _home(self, match: re.Match[str]) -> str:
        """Folders get numbers; the file keeps its name, and what lies in a Python package all of its path."""
        rest, kept = match["rest"], ""
        if packages := _PACKAGES.search(rest):
            rest, kept = rest[: packages.start()], rest[packages.start() :]
        folders, slash, file = rest.rpartition("/") if not kept else (rest, "", "")
        parts = [self._give("folder", part) if part else "" for part in folders.split("/")]
        user = self._give("user", match["name"])
        return f"/home/{user}{'/'.join(parts)}{slash}{file}{kept}"

    def _word(self, match: re.Match[str]) -> str:
        word = match[0].lower()
        kind = self._words.get(word)
        if kind is None and (domain := next(self._domains_at_end(word), "")):
            host = word.removesuffix(f".{domain}")
            return f"{self._give('node', host)}.{self._give('domain', domain)}"
        return self._give(kind or "node", word)

    def _domains_at_end(self, word: str) -> Iterator[str]:
        ends = (word[place + 1 :] for place, sign in enumerate(word) if sign == ".")
        return (end for end in ends if self._words.get(end) == "domain")

    def _learned(self) -> re.Pattern[str]:
        if self._pattern is None:
            self._pattern = re.compile("|".join(self._patterns()) or r"(?!)", re.IGNORECASE)
        return self._pattern

    def _patterns(self) -> Iterable[str]:
        """The longest first. A name of letters alone is a word of its own, others may stand inside of one."""
        for word in sorted(self._words, key=len, reverse=True):
            pattern = self._alike.get(word, re.escape(word))
            if "." in word and self._words[word] == "domain":
                yield rf"(?<![\w.-])(?:[a-z0-9-]{{1,63}}\.){{1,4}}{pattern}(?![a-z0-9])"
            inside = len(word) >= 6 and re.search(r"[\d.-]", word)
            yield pattern if inside else rf"(?<![a-z0-9]){pattern}(?![a-z0-9])"

    def _uuid(self, match: re.Match[str]) -> str:
        plain = match[0].replace("-", "").replace("_", "")
        number = int(self._give("uuid", plain).rpartition("-")[2])
        return f"00000000-0000-4000-8000-{number:012x}" if match["whole"] else f"{number:032x}"

    def _address(self, match: re.Match[str]) -> str:
        return self._give("ip", match[0]) if _is_private(match[0]) else match[0]

    def _give(self, kind: str, original: str) -> str:
        if original in self._ours:
            return original
        self.counts[kind] += 1
        key = (kind, original.lower())
        if key not in self._given:
            self._numbers[kind] += 1
            self._given[key] = f"{kind}-{self._numbers[kind]}"
            self._ours.add(self._given[key])
        return self._given[key]


def _kind_of(key: str) -> str:
    kinds = (("node", NODE_KEYS), ("user", USER_KEYS), ("serial", SERIAL_KEYS))
    return next((kind for kind, keys in kinds if key in keys), "")


def _parsed(text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError:
        return None


def _is_address(text: str) -> bool:
    return _parsed(text, ipaddress.ip_address) is not None


def _is_private(text: str) -> bool:
    """Is it an IP address of a machine: valid, neither loopback nor unspecified?"""
    address = _parsed(text, ipaddress.ip_address)
    return address is not None and not (address.is_loopback or address.is_unspecified)
