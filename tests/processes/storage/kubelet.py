"""Asks an agent as the kubelet would by the probes of deploy/kubernetes, only more often: would it have been killed?"""

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from shared.deploy.manifests import MANIFESTS, Object, containers, one, stored

EVERY = 0.5  # seconds; the kubelet asks each ten


class Questions:
    """How often it was asked, and what failed."""

    def __init__(self, port: int) -> None:
        pod = one(stored(MANIFESTS[0]), "DaemonSet")["spec"]["template"]
        self._probes = [containers(pod)[0][name] for name in ("livenessProbe", "readinessProbe")]
        self._port, self.count, self.failed = port, 0, list[str]()

    def ask(self) -> None:
        """Both probes, with their time limits."""
        for probe in self._probes:
            began = time.monotonic()
            try:
                self._get(probe)
            except OSError as error:
                path = probe["httpGet"]["path"]
                self.failed.append(f"{path}: {error} after {time.monotonic() - began:.1f} s")
            self.count += 1

    def _get(self, probe: Object) -> None:
        url = f"http://127.0.0.1:{self._port}{probe['httpGet']['path']}"
        with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
            answer.read()


@contextmanager
def asked_all_the_time(port: int) -> Iterator[Questions]:
    """By a thread, from now until the end."""
    questions, over = Questions(port), threading.Event()

    def ask() -> None:
        while not over.wait(EVERY):
            questions.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield questions
    finally:
        over.set()
        thread.join(30)
