"""Kubernetes, by the API server of the cluster in which this agent runs: Jobs, PyTorchJobs, JobSets, TrainJobs.

Needs a service account that may list them. A kind that the cluster does not have (404) is no error.
The token is read anew for each request (it is renewed on disk), is sent to the API server alone,
and no error shows it.
"""

import contextlib
import http.client
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from mldebug.core.units import Duration
from mldebug.jobs.schedulers.kubernetes import KINDS, jobs_of
from mldebug.jobs.schedulers.model import Queue, QueueError, QueueJob
from mldebug_agents.jobs.schedulers import Scheduler
from mldebug_agents.system.spawn import ProgramStarter

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE, MOST_PAGES = 250, 40
MAX_BYTES = 16 << 20  # of one page
CHUNK = 1 << 16
_REASONS = {401: "unauthorized", 403: "forbidden"}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options: which Kubernetes API is polled, and for which namespaces."""

    # between two questions
    interval: Annotated[Duration, msgspec.Meta(ge=5)] = 60.0
    # for one page; a question may take four times as long
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0
    # name of the node whose agent asks, * stands for anything; needed
    only_on: tuple[str, ...] = ()
    # none: that of the agent's own pod
    namespaces: tuple[str, ...] = ()
    # "": as the variables of the pod say
    server: str = ""
    # of the service account; read anew for each question
    token_file: Path = ACCOUNT / "token"
    # of the API server's certificate
    ca_file: Path = ACCOUNT / "ca.crt"
    # which names the pod's own namespace
    namespace_file: Path = ACCOUNT / "namespace"


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    if options.server and urlsplit(options.server).scheme not in ("http", "https"):
        yield "server", "is no http:// or https:// address"
    if options.server.startswith("http://") and urlsplit(options.server).hostname not in ("127.0.0.1", "localhost"):  # fmt: skip
        yield "server", "would get the token in clear text; write https://"


class KubernetesScheduler:
    """Lists the training jobs of one Kubernetes cluster. Not safe to be used by several threads."""

    node_events: tuple[str, ...] = ()

    def __init__(self, options: Options) -> None:
        self._options = options

    def ask(self, starter: ProgramStarter, *, nodes: bool) -> Queue:
        """All training jobs of the configured namespaces.

        Raises QueueError where one kind could not be listed. Nodes are never listed.
        """
        until = time.monotonic() + 4 * self._options.timeout
        found: list[QueueJob] = []
        for namespace in self._namespaces():
            for plural, where in KINDS.items():
                path = f"{where}/namespaces/{quote(namespace, safe='')}/{plural}"
                for items in self._pages(path, until):
                    found += jobs_of(plural, items)
        return Queue(jobs=tuple(found), by="api")

    def _namespaces(self) -> tuple[str, ...]:
        return self._options.namespaces or (_text(self._options.namespace_file).strip(),)

    def _pages(self, path: str, until: float) -> Iterator[Any]:
        more = ""
        for _ in range(MOST_PAGES):
            query = urlencode({"limit": PAGE} | ({"continue": more} if more else {}))
            page = self._get(f"{path}?{query}", until)
            if page is None:
                return
            yield page.get("items")
            meta = page.get("metadata")
            more = str(meta.get("continue") or "") if isinstance(meta, dict) else ""
            if not more:
                return
        raise QueueError("too_large", f"{path} has more than {MOST_PAGES * PAGE} objects")

    def _get(self, path: str, until: float) -> dict[str, Any] | None:
        """One page; None where the cluster has no such kind."""
        if time.monotonic() > until:
            raise QueueError("timeout", "the API server takes too long")
        token = _text(self._options.token_file).strip()
        try:
            with contextlib.closing(self._link()) as link:
                link.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})  # fmt: skip
                with link.getresponse() as answer:  # it may have taken the socket over
                    body = _body(answer, until)
        except TimeoutError:
            raise QueueError("timeout", "the API server gave no answer in time") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = type(error).__name__ if isinstance(error, ValueError) else error
            raise QueueError("unreachable", f"the API server cannot be asked: {reason}") from None
        return _page(path.partition("?")[0], answer.status, body)

    def _link(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._options.server or _own_server())
        host, seconds = parts.hostname or "", self._options.timeout
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=seconds)
        trust = ssl.create_default_context(cafile=str(self._options.ca_file))
        return http.client.HTTPSConnection(host, parts.port, timeout=seconds, context=trust)


def _own_server() -> str:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
    if not host:
        raise QueueError("not_in_cluster", "KUBERNETES_SERVICE_HOST is not set: this is no pod; write `server`")  # fmt: skip
    return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"


def _body(answer: http.client.HTTPResponse, until: float) -> bytes:
    body = bytearray()
    while chunk := answer.read1(CHUNK):
        body += chunk
        if len(body) > MAX_BYTES:
            raise QueueError("too_large", f"a page has more than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(body)


def _page(path: str, status: int, body: bytes) -> dict[str, Any] | None:
    if status == 404:
        return None
    if status != 200:
        raise QueueError(
            _REASONS.get(status, "failed"), f"the API server answers {status} for {path}"
        )
    try:
        page = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise QueueError("unreadable", f"what the API server tells of {path} is no JSON object") from None  # fmt: skip
    return page


def _text(path: Path) -> str:
    """A small file of the service account."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(1 << 16)
    except (OSError, UnicodeDecodeError) as error:
        raise QueueError("no_account", f"{path} cannot be read: {error}") from None


def create(options: Options) -> Scheduler:
    """Build the scheduler `kubernetes`: Kubernetes, by the API server of the cluster in which this agent runs: Jobs, PyTorchJobs, JobSets, TrainJobs."""
    return KubernetesScheduler(options)
