"""The sections of the configuration about a fleet: to which hub an agent sends events, and how a hub serves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from mldebug.core.units import SIZE, Duration
from mldebug.core.yaml_reader import Section

DAY = 86400.0
INGEST_PORT, PAGES_PORT = 9755, 9756  # where a hub listens for agents, and for people
NATS = "nats://"


class FleetConfig(Section, frozen=True, kw_only=True):
    """The section `fleet`: the hub that remembers the incidents, faults and jobs of all nodes. Agents work fully without one."""

    # where the agent sends its events: https://hub01:9755, or the NATS servers from which hubs take them: nats://nats01:4222,nats://nats02:4222; "" for nowhere
    hub: str = ""
    # with which the agent proves itself to the hub. None of these four: what `cluster` has
    key_file: Path | None = None
    # in place of the key: a certificate of this node's own, PEM, with `key` and `ca`. Only then a hub knows which node sends
    certificate: Path | None = None
    # of the certificate; chmod 600, without a password
    key: Path | None = None
    # who has signed the certificates of all nodes and of the hub
    ca: Path | None = None
    # events that wait while the hub is away; then the least important go first, summaries of jobs last
    events: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 5000
    # the same as bytes
    size: Annotated[int, SIZE, msgspec.Meta(ge=1 << 18, le=1 << 28)] = 4 << 20
    # where `mldebug lemons` and `mldebug retry-advice` ask: https://hub01:9756. "": a hub that runs on this machine
    pages: str = ""
    # the hub's token, with which they prove themselves there
    token_file: Path | None = None
    # who has signed the hub's certificate for people; none: an authority that this machine knows
    pages_ca: Path | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, what is wrong with it) for addresses that are none, and for keys that do not go together."""
        if self.hub.startswith(NATS):
            yield from (("hub", why) for why in _wrong_servers(self.hub))
        elif self.hub and (why := wrong_address(self.hub)):
            yield "hub", why
        if self.pages and (why := wrong_address(self.pages, plain=True)):
            yield "pages", why
        yield from _wrong_keys(self.key_file, self.certificate, self.key, self.ca)


class HubConfig(Section, frozen=True, kw_only=True):
    """The section `hub`: the process `mldebug hub`, which stores the events of all agents and answers questions about them."""

    # where its database is; by default the folder `hub` in agent.state_dir
    state_dir: Path | None = None
    # a PostgreSQL database in place of the file, like postgresql://mldebug@db01/mldebug?sslmode=verify-full: several hubs may share it
    database: str = ""
    # its password: one line; chmod 600. None: libpq's own ways (a Unix socket, ~/.pgpass, a certificate)
    database_password_file: Path | None = None
    # where agents send
    listen: str = f"0.0.0.0:{INGEST_PORT}"
    # NATS servers from whose JetStream batches are taken in place of listening, like nats://nats01:4222; several separated by commas
    nats: str = ""
    # pages, answers and metrics for people; without `pages_certificate` in clear text, so behind a proxy or on loopback. "" for nowhere
    pages: str = f"127.0.0.1:{PAGES_PORT}"
    # PEM, with `pages_key`: serve people by HTTPS
    pages_certificate: Path | None = None
    # of pages_certificate; chmod 600, without a password
    pages_key: Path | None = None
    # who shows this token sees all jobs and nodes: openssl rand -hex 32. Without it people are answered at the socket alone
    token_file: Path | None = None
    # Unix group whose members see everything at the socket; others see their own jobs. "" for none
    group: str = ""
    # the key that the agents have. None of these four: what `cluster` has
    key_file: Path | None = None
    # in place of the key: the hub's own certificate, PEM, with `key` and `ca`
    certificate: Path | None = None
    # of the certificate; chmod 600, without a password
    key: Path | None = None
    # who has signed the certificates of all nodes
    ca: Path | None = None
    # where agents may be, like 10.1.0.0/16; none: anywhere but link-local
    networks: tuple[str, ...] = ()
    # events older than this are removed
    age: Annotated[Duration, msgspec.Meta(ge=DAY, le=3650 * DAY)] = 180 * DAY
    # of the database; over it the oldest events go, first those of the nodes that have most
    size: Annotated[int, SIZE, msgspec.Meta(ge=16 << 20)] = 4 << 30

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, what is wrong with it) for keys and certificates that do not go together."""
        yield from _wrong_keys(self.key_file, self.certificate, self.key, self.ca)
        if (self.pages_certificate is None) != (self.pages_key is None):
            yield "pages_certificate", "goes together with pages_key"
        if self.database_password_file is not None and not self.database:
            yield "database_password_file", "goes together with database"
        if self.nats:
            yield from (("nats", why) for why in _wrong_servers(self.nats))


def wrong_address(text: str, *, plain: bool = False) -> str:
    """Why this is no address of a hub, `https://host:port` or `host:port`; "" where it is one. `plain`: http:// is one, too."""
    url = text if "://" in text else f"https://{text}"
    schemes = ("https", "http") if plain else ("https",)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"{text!r} is no address; write it like https://hub01:{INGEST_PORT}"
    if parts.scheme not in schemes:
        return f"{text!r} is no {' or '.join(schemes)} address"
    if not host or port == 0:
        return f"{text!r} names no host; write it like https://hub01:{INGEST_PORT}"
    if parts.username or parts.path not in ("", "/") or parts.query or parts.fragment:
        return f"{text!r} has more than host and port"
    return ""


def _wrong_servers(text: str) -> Iterator[str]:
    """Why these are no NATS servers."""
    for one in text.split(","):
        if not one.strip().startswith(NATS):
            yield f"{one!r} is no nats address"
        elif why := wrong_address(one.strip().removeprefix(NATS)):
            yield why


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """Host and port of an address that `wrong_address` finds right; `port` where it has none."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    return parts.hostname or "", parts.port or port


def _wrong_keys(
    key_file: Path | None, certificate: Path | None, key: Path | None, ca: Path | None
) -> Iterator[tuple[str, str]]:
    own = (certificate, key, ca)
    if any(own) and not all(own):
        yield "certificate", "goes together with key and ca"
    if key_file is not None and any(own):
        yield "key_file", "and certificate are two ways: choose one"
