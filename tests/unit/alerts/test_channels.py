"""Channels against real listeners: HTTP sinks that answer well, badly or never, and a real SMTP server."""

import contextlib
import http.server
import json
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.message import Message as Mail
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from click.testing import CliRunner

from mldebug.alerts.message import message_of
from mldebug.alerts.model import (
    Alert,
    AlertEvent,
    Channel,
    EventMessage,
    EventState,
    MessageRefusedError,
    Severity,
)
from mldebug.cli.main import cli
from mldebug.config.schema import Config
from mldebug.core.errors import ConfigError, MldebugError, UsageError
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import load, names, options_of
from mldebug.core.yaml_reader import parse
from mldebug_agents.alerts.delivery import ChannelDelivery, unusable_secret
from mldebug_exporters.channels import alertmanager, apprise, email, ping, slack, webhook
from shared.system.patience import PATIENCE

NOW = 1_700_000_000.0
SECRET = "t0p-s3cret-value"


def message(
    state: EventState = EventState.FIRING, sentence: str = "rank 3 waits for a lock"
) -> EventMessage:
    alarm = Alert(
        key="incident/R1", kind="stall", severity=Severity.CRITICAL, sentence=sentence, report="R1",
        labels={"run": "r", "job": "müller <!here>"}, culprits=("rank 3 on n: lock",), verdict="rank_waiting",
    )  # fmt: skip
    ended = NOW + 5 if state is EventState.RESOLVED else None
    event = AlertEvent(alert=alarm, state=state, started=NOW, ended=ended, outcome="recovered")
    return message_of(event, "node1", "https://reports/{report}")


class Sink(http.server.BaseHTTPRequestHandler):
    """Keeps what it gets and answers as `answers` says."""

    got: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []
    answers: ClassVar[list[int]] = []
    where: ClassVar[str] = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.got.append((self.path, dict(self.headers), body))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        if self.where:
            self.send_header("Location", self.where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[str]:
    Sink.got, Sink.answers, Sink.where = [], [], ""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(30)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def secret_file(folder: Path, text: str = SECRET + "\n") -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(0o600)
    return file


# --- webhook -------------------------------------------------------------------------------------


def test_a_webhook_gets_the_message_and_the_token(sink: str, tmp_path: Path) -> None:
    options = webhook.Options(url=f"{sink}/x?y=1", token_file=secret_file(tmp_path))
    result = message()
    webhook.create(options).send(result)
    ((path, headers, body),) = Sink.got
    assert (path, headers["Authorization"]) == ("/x?y=1", f"Bearer {SECRET}")
    assert headers["Idempotency-Key"] == result.id
    assert msgspec.json.decode(body, type=EventMessage) == result
    assert result.link == "https://reports/R1"


def test_a_redirect_is_not_followed_and_takes_no_credentials(sink: str, tmp_path: Path) -> None:
    Sink.answers, Sink.where = [307], f"{sink}/stranger"
    channel = webhook.create(webhook.Options(url=sink, token_file=secret_file(tmp_path)))
    with pytest.raises(OSError, match="redirects") as caught:
        channel.send(message())
    assert [path for path, _, _ in Sink.got] == ["/"]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, OSError),
        (403, OSError),
        (429, OSError),
        (500, OSError),
        (503, OSError),
        (400, MessageRefusedError),
        (413, MessageRefusedError),
        (422, MessageRefusedError),
    ],
)
def test_what_may_be_mended_is_tried_again_and_the_rest_is_not(
    sink: str, status: int, kind: type[Exception]
) -> None:
    Sink.answers = [status]
    with pytest.raises(kind, match=str(status)):
        webhook.create(webhook.Options(url=sink)).send(message())


def test_a_server_that_never_answers_costs_the_timeout(silent: int) -> None:
    url = f"http://127.0.0.1:{silent}/{SECRET}"
    with pytest.raises(OSError, match="gave no answer") as caught:
        webhook.create(webhook.Options(url=url, timeout=0.3)).send(message())
    assert SECRET not in str(caught.value)


def test_nobody_there_is_told_without_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=r"127\.0\.0\.1: Connection refused") as caught:
        webhook.create(webhook.Options(url=f"http://127.0.0.1:{port}/{SECRET}")).send(message())
    assert SECRET not in str(caught.value)


# --- alertmanager --------------------------------------------------------------------------------


def test_alertmanager_gets_one_alert_with_an_end(sink: str) -> None:
    channel = alertmanager.create(alertmanager.Options(url=sink + "/"))
    channel.send(message())
    channel.send(message(EventState.RESOLVED))
    (path, _, first), (_, _, last) = Sink.got
    (begun,), (over,) = json.loads(first), json.loads(last)
    assert path == "/api/v2/alerts"
    assert begun["labels"] == over["labels"]
    assert begun["labels"]["alertname"] == "MldebugStall"
    assert "verdict" not in begun["labels"]
    assert begun["startsAt"] == over["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert over["endsAt"] == "2023-11-14T22:13:25.000Z" < begun["endsAt"]
    assert begun["annotations"]["summary"] == "rank 3 waits for a lock"
    assert begun["generatorURL"] == "https://reports/R1"


def test_a_clock_that_was_set_back_makes_no_alert_that_ends_before_it_begins() -> None:
    alert = alertmanager.alert_of(message(), 60.0, datetime(2001, 1, 1, tzinfo=UTC))
    assert alert["startsAt"] < alert["endsAt"]


# --- slack ---------------------------------------------------------------------------------------


def test_a_jobs_name_mentions_nobody_in_a_chat(sink: str, tmp_path: Path) -> None:
    file = secret_file(tmp_path, f"{sink}/services/{SECRET}")
    slack.create(slack.Options(url_file=file)).send(message())
    ((path, _, body),) = Sink.got
    assert path == f"/services/{SECRET}"
    assert "<!here>" not in json.loads(body)["text"]
    assert "rank 3 waits for a lock" in json.loads(body)["text"]


# --- mail ----------------------------------------------------------------------------------------


class Box:
    """The handler of a real SMTP server; answers each mail with `answer`."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.answer = "250 OK"
        self.refuses: dict[str, str] = {}  # address -> answer
        self.got: list[list[str]] = []

    async def handle_RCPT(  # noqa: N802
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        import email as mails

        self.mails.append(mails.message_from_bytes(envelope.content))
        self.got.append(list(envelope.rcpt_tos))
        return self.answer


@pytest.fixture
def smtp() -> Iterator[tuple[int, Box]]:
    if not os.environ.get("CI"):
        pytest.importorskip("aiosmtpd")
    from aiosmtpd.controller import Controller

    box = Box()
    server = Controller(box, hostname="127.0.0.1", port=0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        server.port = free.getsockname()[1]
    server.start()
    yield server.port, box
    server.stop()


def mail_options(port: int, **more: Any) -> email.Options:
    return email.Options(
        server="127.0.0.1", port=port, sender="m@x.org", to=("ops@x.org",), security="none", **more
    )


def test_a_mail_arrives_with_one_id_and_no_foreign_header(smtp: tuple[int, Box]) -> None:
    port, box = smtp
    evil = message(sentence="a\r\nBcc: spy@evil.org\r\n\r\nü")
    channel = email.create(mail_options(port))
    channel.send(evil)
    channel.send(evil)
    first, double = box.mails
    assert first["Bcc"] is None
    assert first["Message-ID"] == double["Message-ID"] == f"<{evil.id}@mldebug>"
    assert "report: https://reports/R1" in str(first.get_payload(decode=True))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("550 no", MessageRefusedError), ("451 later", OSError), ("535 auth", OSError)],
)
def test_a_mail_server_that_says_no(
    smtp: tuple[int, Box], answer: str, kind: type[Exception]
) -> None:
    port, box = smtp
    box.answer = answer
    with pytest.raises(kind):
        email.create(mail_options(port)).send(message())


def test_who_has_the_mail_gets_no_double_while_another_is_tried_again(
    smtp: tuple[int, Box],
) -> None:
    port, box = smtp
    everybody = ("a@x.org", "later@x.org", "never@x.org")
    channel = email.create(msgspec.structs.replace(mail_options(port), to=everybody))
    box.refuses = {"later@x.org": "451 greylisted", "never@x.org": "550 unknown"}
    result = message()
    with pytest.raises(OSError, match="1 of the addresses was not accepted yet"):
        channel.send(result)
    with pytest.raises(OSError, match="not accepted yet"):  # nobody else is tried
        channel.send(result)
    box.refuses = {"never@x.org": "550 unknown"}
    channel.send(result)
    assert box.got == [["a@x.org"], ["later@x.org"]]
    with pytest.raises(MessageRefusedError, match="1 of the addresses was not accepted"):
        channel.send(message(EventState.RESOLVED))
    assert box.got[-1] == ["a@x.org", "later@x.org"]


@pytest.fixture
def trickle() -> Iterator[int]:
    """A port that sends a byte every 50 ms and never comes to an end."""
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        link, _ = server.accept()
        with link, contextlib.suppress(OSError):
            while not over.wait(0.05):
                link.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join(30)


@pytest.mark.parametrize("kind", ["webhook", "email"])
def test_a_server_that_drips_is_left_after_a_while(trickle: int, kind: str) -> None:
    channel: Any = webhook.create(webhook.Options(url=f"http://127.0.0.1:{trickle}", timeout=0.3))
    if kind == "email":
        channel = email.create(mail_options(trickle, timeout=0.3))
    began = time.monotonic()
    with pytest.raises(OSError, match=r"127\.0\.0\.1|the server answers"):
        channel.send(message())
    assert time.monotonic() - began < 30 * PATIENCE


def test_a_mail_server_that_accepts_and_never_answers(silent: int) -> None:
    with pytest.raises(OSError, match="gave no answer"):
        email.create(mail_options(silent, timeout=0.3)).send(message())


def test_without_starttls_nothing_is_sent(smtp: tuple[int, Box]) -> None:
    port, box = smtp
    options = msgspec.structs.replace(mail_options(port), security="starttls")
    with pytest.raises(OSError, match="STARTTLS"):
        email.create(options).send(message())
    assert box.mails == []


def test_a_mail_is_readable_text() -> None:
    mail = email.mail_of(message(EventState.RESOLVED), mail_options(25))
    assert isinstance(mail, EmailMessage)
    assert mail["Subject"] == "[resolved] node1: rank 3 waits for a lock"
    assert "over: 2023-11-14T22:13:25.000Z (recovered)" in mail.get_content()


NAMES = [
    "@channel",
    "(@all",
    "<@U123>",
    "<@&9>",
    "@everyone.py",
    "[the report](https://evil.example)",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise's own, of Python 3.11
@pytest.mark.parametrize("kind", ["slack", "apprise"])
def test_a_name_that_a_job_chose_mentions_nobody_and_hides_no_address(
    sink: str, tmp_path: Path, kind: str
) -> None:
    """Mattermost, Rocket.Chat, Discord and Matrix call people by `@`, and most have links whose text is not their address."""
    file = secret_file(tmp_path)
    file.write_text(f"{sink if kind == 'slack' else sink.replace('http', 'json')}/hook\n")
    alarming = message(sentence=f"job {' '.join(NAMES)} of bob@example.org hangs at a[1](x)")
    if kind == "slack":
        slack.create(slack.Options(url_file=file)).send(alarming)
    else:
        apprise.create(apprise.Options(urls_file=file)).send(alarming)
    ((_, _, body),) = Sink.got
    answer = json.loads(body)
    text = "".join(answer[field] for field in ("text", "title", "message") if field in answer)
    assert not re.search(r"(?<!\w)@[\w&]|\]\(", text)
    assert "bob@example.org" in text
    assert "report: https://reports/R1" in text


# --- apprise and ping ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of Python 3.11
def test_apprise_delivers_through_the_real_library(sink: str, tmp_path: Path) -> None:
    file = secret_file(tmp_path)
    file.write_text(f"# ours\n\n{sink.replace('http', 'json')}/hook\n")
    apprise.create(apprise.Options(urls_file=file)).send(message())
    ((path, _, body),) = Sink.got
    answer = json.loads(body)
    assert path == "/hook"
    assert answer["title"] == message().subject
    assert "culprit: rank 3 on n: lock" in answer["message"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of Python 3.11
def test_apprise_that_fails_is_tried_again_and_shows_no_secret(sink: str, tmp_path: Path) -> None:
    file = secret_file(tmp_path)
    Sink.answers = [500]
    file.write_text(f"{sink.replace('http://', f'json://u:{SECRET}@')}/hook\n")
    with pytest.raises(OSError, match="could not deliver") as caught:
        apprise.create(apprise.Options(urls_file=file)).send(message())
    file.write_text(f"json://127.0.0.1/\nno-such-scheme://{SECRET}\n")
    with pytest.raises(OSError, match="address 2 of the file") as other:
        apprise.create(apprise.Options(urls_file=file)).send(message())
    assert SECRET not in str(caught.value) + str(other.value)


def test_apprise_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(OSError, match=r"pip install apprise"):
        apprise.create(apprise.Options(urls_file=secret_file(tmp_path))).send(message())


def test_a_ping_is_a_request_to_an_address_that_may_be_a_secret(sink: str, tmp_path: Path) -> None:
    file = secret_file(tmp_path, f"{sink}/{SECRET}\n")
    channel = ping.create(ping.Options(url_file=file, method="POST"))
    channel.send(message())
    assert [(path, body) for path, _, body in Sink.got] == [(f"/{SECRET}", b"")]
    Sink.answers = [500]
    with pytest.raises(OSError, match="500") as caught:
        channel.send(message())
    assert SECRET not in str(caught.value)


# --- the configuration and the command ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{kind: webhook}", "url"),
        ("{kind: webhook, url: 'ftp://x'}", "http"),
        ("{kind: webhook, url: 'https://u:geheim@x/'}", "password_file"),
        ("{kind: slack}", "url_file"),
        ("{kind: email, server: s, sender: a@b, to: ['x']}", "addresses"),
        ("{kind: email, server: s, sender: a@b, to: [c@d], user: u}", "password_file"),
        ("{kind: ping}", "url"),
        ("{kind: ping, url: 'http://x', url_file: /y}", "either"),
        ("{kind: apprise}", "urls_file"),
        ("{kind: pigeon}", "webhook"),
    ],
)
def test_a_channel_that_cannot_work_is_named_at_once(entry: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse(f"channels:\n  ops: {entry}\n", "x.yaml", Config)
    assert "geheim" not in str(caught.value)


def test_every_channel_has_what_a_channel_needs() -> None:
    for name in names("channels"):
        module = load("channels", name)
        assert module.create(options_of(module)()).repeat >= 0


def test_a_secret_that_is_missing_or_empty_is_told(sink: str, tmp_path: Path) -> None:
    channel = webhook.create(webhook.Options(url=sink, token_file=secret_file(tmp_path, " \n")))
    with pytest.raises(OSError, match="is empty"):
        channel.send(message())
    channel = webhook.create(webhook.Options(url=sink, token_file=secret_file(tmp_path, "ü")))
    with pytest.raises(OSError, match="holds characters"):
        channel.send(message())
    assert Sink.got == []


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
WAYS: dict[str, Callable[[str, Path], Channel]] = {
    "webhook": lambda sink, file: webhook.create(webhook.Options(url=sink, token_file=file)),
    "password": lambda sink, file: webhook.create(
        webhook.Options(url=sink, user="u", password_file=file)
    ),
    "slack": lambda _, file: slack.create(slack.Options(url_file=file)),
    "ping": lambda _, file: ping.create(ping.Options(url_file=file)),
    "apprise": lambda _, file: apprise.create(apprise.Options(urls_file=file)),
}


def lend(file: Path, what: str) -> None:
    """Make the file one that others can read, change or replace, or none at all."""
    if what == "of another user":
        os.chown(file, 62_001, -1)
    elif what == "a FIFO":
        file.unlink()
        os.mkfifo(file, 0o600)
    else:
        file.chmod(int(what, 8))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "what",
    ["644", "604", "602", "620", "a FIFO", pytest.param("of another user", marks=AS_ROOT)],
)
def test_a_secret_that_others_may_read_or_change_is_not_sent(
    sink: str, tmp_path: Path, way: str, what: str
) -> None:
    """Who can write the file chooses where messages go; who can read it writes into the channel himself."""
    address = f"{sink.replace('http', 'json') if way == 'apprise' else sink}/{SECRET}"
    file = secret_file(tmp_path, SECRET if way in ("webhook", "password") else address)
    lend(file, what)
    with pytest.raises(OSError, match=r"can be read by others|no file of root") as caught:
        WAYS[way](sink, file).send(message())
    assert Sink.got == []
    assert SECRET not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise's own, of Python 3.11
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_secret_of_the_agent_and_a_group_is_sent(
    sink: str, tmp_path: Path, way: str, mode: int
) -> None:
    address = f"{sink.replace('http', 'json') if way == 'apprise' else sink}/{SECRET}"
    file = secret_file(tmp_path, SECRET if way in ("webhook", "password") else address)
    file.chmod(mode)
    WAYS[way](sink, file).send(message())
    assert len(Sink.got) == 1


def test_every_file_of_a_channel_s_options_is_a_secret_that_is_looked_at_or_an_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new option that names a file is looked at as the agent starts, so that it does not find out with the first stall."""
    open_file = secret_file(tmp_path)
    open_file.chmod(0o644)
    named = []
    for kind in names("channels"):
        options = options_of(load("channels", kind))
        for field in msgspec.structs.fields(options):
            if "Path" in str(field.type) and field.name != "ca_file":
                assert field.name.endswith("_file")
                assert "can be read by others" in unusable_secret(options(**{field.name: open_file}))  # fmt: skip
                named.append(f"{kind}.{field.name}")
    assert len(named) >= 8, named
    plugin = Plugin("slack", slack.Options(url_file=open_file))
    delivery = ChannelDelivery("chat", plugin, queue.SimpleQueue())
    assert delivery.state.trouble == f"{open_file} can be read by others: chmod 600 {open_file}"
    assert f"channel chat sends nothing: {open_file} can be read by others" in caplog.text
    open_file.chmod(0o600)
    assert ChannelDelivery("chat", plugin, queue.SimpleQueue()).state.trouble == ""


def test_notify_sends_both_states_and_says_so(sink: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(f"channels:\n  ops: {{kind: webhook, url: '{sink}'}}\n")
    result = CliRunner().invoke(cli, ["notify", "--config", str(file), "--test", "ops"])
    assert (result.exit_code, len(Sink.got)) == (0, 2)
    assert "ops (webhook) has accepted the firing message" in result.output
    Sink.answers = [401]
    result = CliRunner().invoke(cli, ["notify", "--config", str(file), "--test", "ops"])
    assert isinstance(result.exception, MldebugError)
    assert "does not accept our token" in result.exception.message


def test_notify_names_the_channels_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("channels:\n  ops: {kind: webhook, url: 'http://x'}\n")
    result = CliRunner().invoke(cli, ["notify", "--config", str(file), "--test", "chat"])
    assert isinstance(result.exception, UsageError)
    assert result.exception.way_out == "choose from: ops"
