"""A hub as one process: transport, store, answers; what is too old is removed four times a minute."""

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from mldebug.config.fleet import HubConfig
from mldebug.config.schema import Config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import create
from mldebug.fleet.hub_model import FleetStore, HubTransport
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.intake import Intake
from mldebug_agents.fleet.hub.metrics import HubMetrics, StoreFigures
from mldebug_agents.fleet.hub.notes import NoteBook
from mldebug_agents.fleet.hub.page import hub_pages
from mldebug_agents.fleet.hub.people import questions, socket_app, tcp_app
from mldebug_agents.fleet.hub.stores import postgresql, sqlite
from mldebug_agents.fleet.hub.transports import https, nats
from mldebug_agents.fleet.key_files import KeyFiles
from mldebug_agents.fleet.places import HUB_SOCKET, hub_dir
from mldebug_agents.fleet.setup import keys_of
from mldebug_agents.state.folder import MODE
from mldebug_agents.web.access.sessions import Sessions
from mldebug_agents.web.access.token_auth import TokenAuth
from mldebug_agents.web.listeners import open_tcp, open_unix
from mldebug_agents.web.peer_credentials import group_number
from mldebug_agents.web.server import HttpServers

log = logging.getLogger("mldebug")

LOOK_EVERY = (
    15.0  # seconds between two looks at the store: for metrics, and to remove what is too old
)
NO_TOKEN = "By TCP a hub answers only with hub.token_file. At its socket it needs no setting."  # noqa: S105 - a sentence


class Hub:
    """A whole hub. `run` serves until `stop`."""

    def __init__(self, config: Config) -> None:
        """Open everything. Raises ConfigError or UsageError where an address is taken, or a key or the database cannot be used."""
        settings, folder = config.hub, hub_dir(config)
        self._settings = settings
        self._group = group_number(settings.group)
        tls = _tls(settings.pages_certificate, settings.pages_key)
        self.store = store_of(settings, folder)
        self.transport = transport_of(settings, keys_of(settings, config))
        folder.mkdir(mode=MODE, parents=True, exist_ok=True)  # of the socket, whatever the store is
        self.store.open()
        self.intake = Intake(self.store, Refusals())
        self._servers = HttpServers()
        answerer = Answerer(self.store)
        by_path = questions(answerer, self.intake)
        pages = hub_pages(answerer)
        notes = NoteBook(answerer, self.intake)
        self.figures = StoreFigures(self.store, answerer)
        metrics = HubMetrics(self.figures, self.transport, self.intake)
        self._servers.serve(
            socket_app(by_path, metrics, pages, notes, self._group), open_unix(folder, HUB_SOCKET)
        )
        if settings.pages:
            tokens = TokenAuth(settings.token_file, Sessions(), home="/", none=NO_TOKEN)
            self._servers.serve(
                tcp_app(by_path, metrics, pages, notes, tokens), open_tcp(settings.pages), tls
            )
        self._stopping = Event()
        self._trouble = ""  # of the last look at the store

    def run(self, now: Callable[[], float] = time.time) -> None:
        """Take batches and answer questions until `stop` is called."""
        self.transport.start(self.intake.take)
        log.info("the hub takes events at %s", self._settings.nats or self._settings.listen)
        self.look(now())
        while not self._stopping.wait(LOOK_EVERY):
            self.look(now())
        self.transport.stop()
        self._servers.stop()
        self.intake.close()
        self.store.close()

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler."""
        self._stopping.set()

    def look(self, now: float) -> None:
        """Remove what is too old or too much, and read what metrics say of the store."""
        try:
            gone = self.store.prune(now - self._settings.age, self._settings.size)
            self.figures.refresh()
        except OSError as error:
            if str(error) != self._trouble:
                log.error("the store does not answer: %s", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        if gone:
            log.debug("%d old events were removed", gone)


def store_of(settings: HubConfig, folder: Path) -> FleetStore:
    """The store that the settings name: PostgreSQL where they name a database, else a file in `folder`."""
    if settings.database:
        password = settings.database_password_file
        options = postgresql.Options(database=settings.database, password_file=password)
        found: FleetStore = create("hub_stores", "postgresql", options)
    else:
        found = create("hub_stores", "sqlite", sqlite.Options(folder=folder))
    return found


def transport_of(settings: HubConfig, keys: KeyFiles) -> HubTransport:
    """The transport that the settings name: NATS where they name its servers, else HTTPS."""
    if settings.nats:
        streamed = nats.Options(servers=settings.nats, keys=keys)
        found: HubTransport = create("hub_transports", "nats", streamed)
    else:
        options = https.Options(listen=settings.listen, keys=keys, networks=settings.networks)
        found = create("hub_transports", "https", options)
    return found


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context for people; None for clear text."""
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"hub.pages_certificate cannot be used: {error}", "both are PEM, the key without a password") from error  # fmt: skip
    return context
