"""Slack, by an incoming webhook or a bot; Mattermost and Rocket.Chat take the webhook's messages as well."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode, urlsplit

import msgspec

from mldebug.alerts.message import for_chat, plain_text
from mldebug.alerts.model import Channel, EventMessage, MessageRefusedError
from mldebug.alerts.rank_map import RankMap, legend, picture, squares
from mldebug.core.units import Duration
from mldebug_exporters.channels._http import problem_of, request
from mldebug_exporters.channels._secrets import secret

MOST = 3900  # characters; Slack asks for at most 4,000
FINAL = ("msg_too_long", "invalid_arguments", "invalid_blocks", "no_text", "restricted_action")
"""Errors of Slack's API that another try cannot mend; a person, or time, may mend the others."""
_INVALID = "the token is not valid any more: make a new token"
_INVITE = "there is no such channel, or the bot is not in it: check the id, and invite the bot with /invite"
_ARCHIVED = "the channel is archived: name another one"
MEANINGS = {
    **dict.fromkeys(("invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"), _INVALID),
    **dict.fromkeys(("channel_not_found", "not_in_channel"), _INVITE),
    **dict.fromkeys(("is_archived", "channel_is_archived"), _ARCHIVED),
    "missing_scope": "the app lacks a scope: it needs chat:write and files:write, and to be installed again",
    "no_service": "the webhook was removed or switched off: make a new webhook",
    "action_prohibited": "an administrator of the workspace does not allow this webhook to write there",
    **dict.fromkeys(("ratelimited", "rate_limited", "429"), "too many messages in a short time: it is sent later"),
}  # fmt: skip
"""What people have to do about an error of Slack, by its name or status."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file with the webhook's address, which is a secret: with it anybody can write to the channel. Or a bot, which also sends a
    picture of the ranks.
    """

    url_file: Path | None = None  # a file that holds the address of an incoming webhook
    token_file: Path | None = None  # in its place: a bot's token; it needs chat:write, files:write
    channel: str = ""  # the id of the bot's channel, which begins with C: C0NF841BK
    api: str = "https://slack.com/api"  # of the bot
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0  # of one request


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Check what the types of the options cannot: yields (option, what is wrong with it)."""
    if options.url_file is None and options.token_file is None:
        yield "url_file", "is missing: name a file that holds the address of the incoming webhook"
    if options.url_file is not None and options.token_file is not None:
        yield "url_file", "stands beside token_file: set either"
    if options.token_file is not None and not options.channel.isalnum():
        yield "channel", "needs the id of the channel, such as C0NF841BK"
    if wrong := problem_of(options.api):
        yield "api", wrong


class Answer(msgspec.Struct, frozen=True):
    """The fields of an answer of Slack's API that are used."""

    ok: bool = False
    error: str = ""
    upload_url: str = ""
    file_id: str = ""


class Slack:
    """Posts each message as text, escaped so that the name of a job can neither mention anybody nor become a link.

    What the ranks do follows as coloured squares, at most 64; a bot sends a picture in their place.
    """

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: EventMessage) -> None:
        """Post the message. Raises where it was not accepted (see `_http.request`), with what people have to do about it."""
        try:
            self._send(message)
        except MessageRefusedError as error:
            raise MessageRefusedError(_explained(str(error))) from None
        except OSError as error:
            raise OSError(_explained(str(error))) from None

    def _send(self, message: EventMessage) -> None:
        options = self._options
        if options.token_file is None:
            body = msgspec.json.encode({"text": text_of(message)})
            url = secret(options.url_file)
            request(url, body, _headers("application/json"), options.timeout, options.ca_file)
            return
        token = secret(options.token_file)
        if message.map is None or not self._send_picture(message, message.map, token):
            self._call("chat.postMessage", {"channel": options.channel, "text": text_of(message)}, token)  # fmt: skip

    def _send_picture(self, message: EventMessage, ranks: RankMap, token: str) -> bool:
        """Send the message as the comment of a picture, in Slack's three steps; False where the picture is not taken, which is no reason
        to say nothing.
        """
        png = picture(ranks)
        try:
            place = self._call("files.getUploadURLExternal", {"filename": "ranks.png", "length": str(len(png)), "alt_txt": legend(ranks)[:1000]}, token)  # fmt: skip
            if not _is_slacks(place.upload_url, self._options.api):
                return False
            request(place.upload_url, png, _headers("application/octet-stream"), self._options.timeout, self._options.ca_file)  # fmt: skip
        except (OSError, MessageRefusedError):
            return False
        files = msgspec.json.encode([{"id": place.file_id, "title": "ranks"}]).decode()
        try:
            self._call("files.completeUploadExternal", {"files": files, "channel_id": self._options.channel, "initial_comment": text_of(message, with_squares=False)}, token)  # fmt: skip
        except MessageRefusedError:
            return False
        return True

    def _call(self, method: str, fields: Mapping[str, str], token: str) -> Answer:
        """One call of Slack's API, which answers 200 whether it has done it or not."""
        headers = _headers("application/x-www-form-urlencoded; charset=utf-8")
        headers |= {"Authorization": f"Bearer {token}"}
        url = f"{self._options.api}/{method}"
        received = request(url, urlencode(fields).encode(), headers, self._options.timeout, self._options.ca_file)  # fmt: skip
        answer = _answer(received, method)
        if answer.ok:
            return answer
        words = f"Slack does not take it ({method}): {answer.error[:60]!r}"
        raise MessageRefusedError(words) if answer.error in FINAL else OSError(words)


def _answer(received: bytes, method: str) -> Answer:
    """The answer to a call. One that is longer than what was read of it has begun with what it is about."""
    try:
        return msgspec.json.decode(received, type=Answer)
    except msgspec.MsgspecError:
        if received.startswith(b'{"ok":true'):
            return Answer(ok=True)
        raise OSError(f"Slack's answer to {method} cannot be read") from None


def _explained(words: str) -> str:
    """An error with what it means, where Slack's documentation says that."""
    found = (meaning for name, meaning in MEANINGS.items() if re.search(rf"\b{name}\b", words))
    meaning = next(found, "")
    return f"{words}: {meaning}" if meaning else words


def _headers(kind: str) -> dict[str, str]:
    return {"Content-Type": kind, "User-Agent": "mldebug"}


def _is_slacks(url: str, api: str) -> bool:
    """Whether an upload address is of the API's host or of Slack: a picture goes to nobody else."""
    if problem_of(url):
        return False
    given, ours = urlsplit(url), urlsplit(api)
    host = given.hostname or ""
    return given.scheme == ours.scheme and (host == ours.hostname or host.endswith(".slack.com"))


def text_of(message: EventMessage, *, with_squares: bool = True) -> str:
    """The message as Slack's text: the subject, what the ranks do as coloured squares, and all else. The sentence is said once, unless the
    subject had no room for all of it.
    """
    text = plain_text(message)
    if message.subject.endswith(message.sentence):
        text = text.removeprefix(message.sentence).lstrip("\n")
    subject, rest = map(escape, map(for_chat, (message.subject, text)))
    ranks = squares(message.map) if message.map is not None and with_squares else ""
    between = f"{escape(for_chat(ranks))}\n" if ranks else ""
    head = f"*{subject}*\n{between}"
    return head + _cut(rest, MOST - len(head))


def _cut(escaped: str, most: int) -> str:
    """At most so many characters, without a part of an escape at the end."""
    return escaped if len(escaped) <= most else re.sub(r"&[a-z]*$", "", escaped[: most - 1]) + "…"


def escape(text: str) -> str:
    """Replace `&`, `<` and `>` as Slack demands.

    Without `<` a text can neither mention anybody nor become a link in Slack; `for_chat` does the same for others.
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def create(options: Options) -> Channel:
    """Build the channel `slack`: Slack, by an incoming webhook or a bot; Mattermost and Rocket.Chat take the webhook's messages as well."""
    return Slack(options)
