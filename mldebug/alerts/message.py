"""An event in words: the message that every channel gets, and its plain text. Pure.

Names come from jobs, so texts are cut to a length and cleaned of control characters and secrets.
"""

import hashlib
import re
from datetime import UTC, datetime

import msgspec

from mldebug.alerts.model import Alert, AlertEvent, EventMessage, EventState
from mldebug.core.model import Culprit
from mldebug.core.redact import safe_line

MOST_STEPS, MOST_CULPRITS = 5, 8
SUBJECT = 200  # characters
_MENTION = re.compile(r"(?<!\w)@(?=[\w&!])")
_LINK = re.compile(r"\]\(")


def message_of(event: AlertEvent, node: str, link: str = "", version: str = "") -> EventMessage:
    """The message about the event's present state.

    `link`: the address of a report, in which `{report}` stands for its id.
    """
    alert, over = event.alert, event.state is EventState.RESOLVED
    sentence = safe_line(alert.sentence, 2000)
    state = "resolved" if over else "firing"
    return EventMessage(
        id=_id(event, node),
        key=safe_line(alert.key, 300),
        state="resolved" if over else "firing",
        kind=alert.kind,
        severity=str(alert.severity),
        node=node,
        sentence=sentence,
        subject=safe_line(f"[{state}] {node}: {sentence}", SUBJECT),
        verdict=alert.verdict,
        culprits=tuple(safe_line(culprit, 300) for culprit in alert.culprits[:MOST_CULPRITS]),
        map=alert.map,
        next_steps=tuple(safe_line(one, 500) for one in alert.next_steps[:MOST_STEPS]),
        report=alert.report,
        link=_link(alert.report, link),
        labels={name: safe_line(value, 200) for name, value in alert.labels.items()},
        started=_moment(event.started),
        ended=_moment(event.ended) if over and event.ended is not None else "",
        outcome=event.outcome if over else "",
        version=version,
    )


def alive(node: str, at: float, version: str = "") -> EventMessage:
    """The message "the agent lives", for a dead man's switch. `at`: unix time."""
    sentence = "the agent lives"
    return EventMessage(
        id=f"{node}-{at:.3f}", key="alive", state="firing", kind="alive", severity="info", node=node,
        sentence=sentence, subject=safe_line(f"{node}: {sentence}", SUBJECT), started=_moment(at), version=version,
    )  # fmt: skip


def cleaned(alert: Alert) -> Alert:
    """The alert with texts that can be stored and sent: one line each, valid UTF-8, of bounded length; lists are cut, too."""
    return msgspec.structs.replace(
        alert,
        key=safe_line(alert.key, 500),
        sentence=safe_line(alert.sentence, 2000),
        labels={name: safe_line(value, 200) for name, value in alert.labels.items()},
        next_steps=tuple(safe_line(one, 500) for one in alert.next_steps[:MOST_STEPS]),
        culprits=tuple(safe_line(culprit, 300) for culprit in alert.culprits[:MOST_CULPRITS]),
        blamed=tuple(map(_cleaned, alert.blamed[:MOST_CULPRITS])),
    )


def _cleaned(one: Culprit) -> Culprit:
    reason, node = safe_line(one.reason, 300), safe_line(one.node, 200)
    return msgspec.structs.replace(one, reason=reason, node=node)


def plain_text(message: EventMessage) -> str:
    """The message as plain text, for a mail or chat: sentence, when it was over, culprits, next steps, link, labels, node, times.

    Of what is over there is no next step.
    """
    lines = [message.sentence, ""]
    lines += [f"over: {message.ended} ({message.outcome})"] if message.ended else []
    lines += [f"culprit: {culprit}" for culprit in message.culprits]
    lines += [f"next step: {one}" for one in message.next_steps if not message.ended]
    lines += [f"report: {message.link}"] if message.link else []
    lines += [f"{name}: {value}" for name, value in sorted(message.labels.items())]
    lines += [f"node: {message.node}", f"since: {message.started}"]
    return "\n".join(lines) + "\n"


def for_chat(text: str) -> str:
    """The text with a zero-width space where a chat would call somebody (`@all`), or show other words than its address for a link.

    Of Slack, Mattermost, Rocket.Chat, Discord, Matrix and others each reads some of these in plain text.
    """
    return _LINK.sub("]\u200b(", _MENTION.sub("@\u200b", text))


def _id(event: AlertEvent, node: str) -> str:
    """The id of a message: equal for one state of one event on one node, from whichever agent and however often it is sent."""
    identity = f"{node}\n{event.key}\n{event.started:.3f}\n{event.state}"
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:32]


def _link(report: str, link: str) -> str:
    if not report:
        return ""
    return link.replace("{report}", report) if link else f"mldebug reports show {report}"


def _moment(at: float) -> str:
    """RFC 3339, UTC, to the millisecond."""
    text = datetime.fromtimestamp(round(at, 3), UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
