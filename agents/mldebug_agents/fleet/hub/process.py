"""A hub as one process: transport, store, answers; what is too old is removed each minute."""

import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

from mldebug.config.schema import Config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import create
from mldebug.fleet.hub_model import FleetStore, HubTransport
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.intake import Intake
from mldebug_agents.fleet.hub.metrics import HubMetrics
from mldebug_agents.fleet.hub.page import fleet_page
from mldebug_agents.fleet.hub.people import questions, socket_app, tcp_app
from mldebug_agents.fleet.hub.stores import sqlite
from mldebug_agents.fleet.hub.transports import https
from mldebug_agents.fleet.places import HUB_SOCKET, hub_dir
from mldebug_agents.fleet.setup import keys_of
from mldebug_agents.web.access.sessions import Sessions
from mldebug_agents.web.access.token_auth import TokenAuth
from mldebug_agents.web.listeners import open_tcp, open_unix
from mldebug_agents.web.peer_credentials import group_number
from mldebug_agents.web.server import HttpServers

log = logging.getLogger("mldebug")

PRUNE_EVERY = 60.0  # seconds
NO_TOKEN = "By TCP a hub answers only with hub.token_file. At its socket it needs no setting."  # noqa: S105 - a sentence


class Hub:
    """A whole hub. `run` serves until `stop`."""

    def __init__(self, config: Config) -> None:
        """Open everything. Raises ConfigError or UsageError where an address is taken, or a key or the database cannot be used."""
        settings, folder = config.hub, hub_dir(config)
        self._settings = settings
        self._group = group_number(settings.group)
        keys = keys_of(settings, config)
        pages = _tls(settings.pages_certificate, settings.pages_key)
        self.store: FleetStore = create("hub_stores", "sqlite", sqlite.Options(folder=folder))
        options = https.Options(listen=settings.listen, keys=keys, networks=settings.networks)
        self.transport: HubTransport = create("hub_transports", "https", options)
        self.store.open()
        self.intake = Intake(self.store, Refusals())
        self._servers = HttpServers()
        answerer = Answerer(self.store)
        by_path = questions(answerer, self.intake)
        page = partial(fleet_page, answerer)
        metrics = HubMetrics(self.store, self.transport, self.intake, answerer)
        self._servers.serve(
            socket_app(by_path, metrics, page, self._group), open_unix(folder, HUB_SOCKET)
        )
        if settings.pages:
            tokens = TokenAuth(settings.token_file, Sessions(), home="/", none=NO_TOKEN)
            self._servers.serve(
                tcp_app(by_path, metrics, page, tokens), open_tcp(settings.pages), pages
            )
        self._stopping = Event()

    def run(self, now: Callable[[], float] = time.time) -> None:
        """Take batches and answer questions until `stop` is called."""
        self.transport.start(self.intake.take)
        log.info("the hub takes events at %s", self._settings.listen)
        while not self._stopping.wait(PRUNE_EVERY):
            self._prune(now())
        self.transport.stop()
        self._servers.stop()
        self.intake.close()
        self.store.close()

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler."""
        self._stopping.set()

    def _prune(self, now: float) -> None:
        try:
            gone = self.store.prune(now - self._settings.age, self._settings.size)
        except OSError as error:
            log.error("no old events were removed: %s", error)
            return
        if gone:
            log.info("%d old events were removed", gone)


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
