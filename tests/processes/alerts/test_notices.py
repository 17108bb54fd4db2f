"""A real stall is told by every channel, once, and so is its end."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest

from processes.alerts.sink import sink
from processes.harness import PACE, Plan, User, folder_for, running, wait_for
from processes.incidents.watching import settings, start, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")
if not os.environ.get("CI"):
    pytest.importorskip("aiosmtpd", reason="the mail server of the tests")

QUICK = "{timeout: 6s, interval: 1s}"


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Its port, and what kind of event with which subject each mail was about."""
    from aiosmtpd.controller import Controller

    mails: list[tuple[str, str]] = []

    class Box:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            mail = message_from_bytes(envelope.content, policy=default)
            mails.append((str(mail["X-Mldebug-Kind"]), str(mail["Subject"])))
            return "250 OK"

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Controller(Box(), hostname="127.0.0.1", port=port)
    server.start()
    yield port, mails
    server.stop()


def channels(url: str, port: int) -> str:
    """One of each kind."""
    return (
        f"channels:\n  ops: {{kind: webhook, url: '{url}/hook'}}\n"
        f"  am: {{kind: alertmanager, url: '{url}', repeat: 1h}}\n"
        f"  mail: {{kind: email, server: 127.0.0.1, port: {port}, security: none,"
        " sender: m@x.org, to: [ops@x.org]}\n"
    )


@dataclass
class Arrived:
    """What arrived of stalls: the node that runs the tests may have news of its own, a full disk or a sick kernel."""

    posts: list[tuple[str, Any]]
    mails: list[tuple[str, str]]

    @property
    def hooks(self) -> list[Any]:
        return [body for path, body in self.posts if path == "/hook" and body["kind"] == "stall"]

    @property
    def alerts(self) -> list[Any]:
        bodies = [body[0] for path, body in self.posts if path == "/api/v2/alerts"]
        return [one for one in bodies if one["labels"]["alertname"] == "MldebugStall"]

    @property
    def subjects(self) -> list[str]:
        return [subject for kind, subject in self.mails if kind == "stall"]

    def by_all(self, count: int) -> bool:
        return min(map(len, (self.hooks, self.alerts, self.subjects))) >= count


def ended(reports: list[Any]) -> bool:
    """A message may be quicker than its report."""
    return bool(reports) and reports[0]["state"] == "recovered"


def test_a_stall_ends_in_one_mail_one_alert_and_one_payload_with_one_sentence(user: User) -> None:
    with (
        sink() as (url, posts),
        mailbox() as (port, mails),
        folder_for(user) as folder,
        watching(folder, settings(folder, stall=QUICK) + channels(url, port), user) as agent,
        running(Plan(struck=(), options=PACE, user=user)) as job,
    ):
        arrived = Arrived(posts, mails)
        job.wait_for_step(60)
        wait_for("the agent sees steps", lambda: (result := agent.run_of(job)) and result.step, 60)
        os.kill(job.ranks[2], signal.SIGSTOP)
        try:
            wait_for("all channels", lambda: arrived.by_all(1), 60)
        finally:
            os.kill(job.ranks[2], signal.SIGCONT)
        wait_for("the report's end", lambda: ended(agent.reports(job)), 60)
        try:
            wait_for("the end by all channels", lambda: arrived.by_all(2), 60)
        except AssertionError:
            pytest.fail(f"{posts}\n{mails}\n{agent.reports(job)[0]['timeline']}\n{agent.log}")
        (report,) = agent.reports(job)

    print([one for one in (*posts, *mails) if "stall" not in str(one)])
    sentence = report["diagnosis"]["summary"]
    assert [(one["state"], one["sentence"]) for one in arrived.hooks] == [
        ("firing", sentence),
        ("resolved", sentence),
    ]
    alerts = arrived.alerts
    assert [one["annotations"]["summary"] for one in alerts] == [sentence, sentence]
    assert alerts[0]["labels"] == alerts[1]["labels"]
    assert alerts[1]["annotations"]["outcome"] == "recovered"
    assert [one.partition("]")[0] for one in arrived.subjects] == ["[firing", "[resolved"]
    assert all(sentence[:60] in one for one in arrived.subjects)
    assert arrived.hooks[0]["report"] == report["id"]


def test_an_agent_that_is_killed_before_it_hears_the_answer_sends_it_again_under_the_same_id(
    user: User,
) -> None:
    gate = threading.Event()
    with (
        sink(gate) as (url, posts),
        folder_for(user) as folder,
        running(Plan(struck=(), options=PACE, user=user)) as job,
    ):
        arrived = Arrived(posts, [])
        hook = f"channels:\n  ops: {{kind: webhook, url: '{url}/hook', timeout: 60s}}\n"
        config = settings(folder, stall=QUICK) + hook
        job.wait_for_step(60)
        first = start(folder, config, user)
        try:
            wait_for(
                "the agent sees steps", lambda: (result := first.run_of(job)) and result.step, 60
            )
            os.kill(job.ranks[2], signal.SIGSTOP)
            wait_for("a message that nobody acknowledges", lambda: arrived.hooks, 60)
        finally:
            first.process.kill()
            first.process.wait(30)
        gate.set()
        try:
            with watching(folder, config, user) as agent:
                wait_for("the same once more", lambda: len(arrived.hooks) >= 2, 60)
                os.kill(job.ranks[2], signal.SIGCONT)
                wait_for("its end", lambda: arrived.hooks[-1]["state"] == "resolved", 60)
                (report,) = agent.reports(job)
        finally:
            os.kill(job.ranks[2], signal.SIGCONT)

    states = [one["state"] for one in arrived.hooks]
    assert states == ["firing", "firing", "resolved"]
    assert arrived.hooks[0]["id"] == arrived.hooks[1]["id"] != arrived.hooks[2]["id"]
    assert {one["report"] for one in arrived.hooks} == {report["id"]}
