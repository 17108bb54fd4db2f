"""What Slack answers, as its documentation lists it: which is tried again, and what a person is told who has to mend it.

Limits of a message: Slack asks for 4,000 characters of text and cuts at 40,000; the description of a picture has at most 1,000.
"""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

from mldebug.alerts.model import EventMessage, MessageRefusedError
from mldebug_exporters.channels import slack
from unit.alerts.test_rank_map import ALONE, TOKEN, message, nodes

# status, headers, body
Recorded = tuple[int, dict[str, str], bytes]
HOOKS: dict[str, tuple[Recorded, type[Exception], str]] = {
    "no_service": ((404, {}, b"no_service"), OSError, "make a new webhook"),
    "channel_is_archived": ((410, {}, b"channel_is_archived"), MessageRefusedError, "the channel is archived"),
    "channel_not_found": ((404, {}, b"channel_not_found"), OSError, "invite the bot"),
    "invalid_token": ((403, {}, b"invalid_token"), OSError, "does not accept our token"),
    "action_prohibited": ((403, {}, b"action_prohibited"), OSError, "an administrator"),
    "invalid_payload": ((400, {}, b"invalid_payload"), MessageRefusedError, "invalid_payload"),
    "rate_limited": ((429, {"Retry-After": "30"}, b"rate_limited"), OSError, "too many messages"),
    "server": ((503, {}, b"<html>upstream connect error</html>"), OSError, "answers 503"),
}  # fmt: skip
BOT: dict[str, tuple[type[Exception], str]] = {
    "invalid_auth": (OSError, "make a new token"),
    "token_revoked": (OSError, "make a new token"),
    "account_inactive": (OSError, "make a new token"),
    "missing_scope": (OSError, "chat:write"),
    "channel_not_found": (OSError, "invite the bot"),
    "not_in_channel": (OSError, "invite the bot"),
    "is_archived": (OSError, "the channel is archived"),
    "ratelimited": (OSError, "too many messages"),
    "msg_too_long": (MessageRefusedError, "msg_too_long"),
    "internal_error": (OSError, "internal_error"),
}


class Recording(http.server.BaseHTTPRequestHandler):
    """Gives one recorded answer to every request."""

    recorded: ClassVar[Recorded] = (200, {}, b"ok")
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        status, headers, body = self.recorded
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def base() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    Recording.recorded, Recording.bodies = (200, {}, b"ok"), []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(30)


def secret(folder: Path, text: str) -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("name", HOOKS)
def test_an_answer_of_a_webhook_is_told_in_words(name: str, base: str, tmp_path: Path) -> None:
    Recording.recorded, kind, words = HOOKS[name]
    channel = slack.create(slack.Options(url_file=secret(tmp_path, f"{base}/services/T0/B0/s3cret")))  # fmt: skip
    with pytest.raises(kind, match=words) as caught:
        channel.send(message(None))
    assert "s3cret" not in str(caught.value)
    assert "<html>" not in str(caught.value)


@pytest.mark.parametrize("error", BOT)
@pytest.mark.parametrize("status", [200, 429])
def test_an_answer_to_a_bot_is_told_in_words(
    error: str, status: int, base: str, tmp_path: Path
) -> None:
    kind, words = BOT[error]
    if (status == 429) != (error == "ratelimited"):
        status = 200
    body = b'{"ok":false,"error":"%s"}' % error.encode()
    Recording.recorded = (status, {"Retry-After": "30"} if status == 429 else {}, body)
    options = slack.Options(token_file=secret(tmp_path, TOKEN), channel="C0NF841BK", api=f"{base}/api")  # fmt: skip
    with pytest.raises(kind, match=words) as caught:
        slack.create(options).send(message(None))
    assert TOKEN not in str(caught.value)


def longest() -> EventMessage:
    """As much text as an event may have."""
    whole = message(nodes(200, 3), "rank <7> & " * 300)
    return replace(whole, culprits=("&" * 300,) * 8, next_steps=("<" * 500,) * 5, labels={f"l{n}": "&" * 200 for n in range(30)})  # fmt: skip


def test_the_longest_message_keeps_to_the_limits_of_slack(base: str, tmp_path: Path) -> None:
    text = slack.text_of(longest())
    assert len(text) < 4000
    assert not text.rstrip().endswith(("&", "&a", "&am", "&amp", "&l", "&lt")), "an escape is cut"
    Recording.recorded = (200, {}, b'{"ok":true}')
    options = slack.Options(token_file=secret(tmp_path, TOKEN), channel="C0NF841BK", api=f"{base}/api")  # fmt: skip
    slack.create(options).send(replace(longest(), map=nodes(128, 3)))
    alt = parse_qs(Recording.bodies[0].decode())["alt_txt"][0]
    assert 0 < len(alt) <= 1000
    assert ALONE.nodes


def test_a_short_sentence_is_said_once_and_a_long_one_whole() -> None:
    assert slack.text_of(message(None)).count("rank 2 waits for a lock") == 1
    sentence = "rank 2 waits for a lock " * 20 + "to the end"
    assert slack.text_of(message(None, sentence)).count("to the end") == 1


def test_what_is_over_is_said_first_and_has_no_next_step() -> None:
    firing = replace(message(None), next_steps=("open train.py:9",))
    over = replace(firing, state="resolved", ended="2026-11-28T06:12:10.000Z", outcome="recovered")
    assert "next step: open train.py:9" in slack.text_of(firing)
    lines = slack.text_of(over).splitlines()
    assert lines[1] == "over: 2026-11-28T06:12:10.000Z (recovered)"
    assert not [line for line in lines if line.startswith("next step")]
