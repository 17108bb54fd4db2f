"""E-mail, sent by an SMTP server."""

import smtplib
import socket
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import formatdate
from html import escape
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import msgspec

from mldebug.alerts.message import plain_text
from mldebug.alerts.model import Channel, EventMessage, MessageRefusedError
from mldebug.alerts.rank_map import RankMap, legend, picture
from mldebug.core.units import Duration
from mldebug_exporters.channels._secrets import secret
from mldebug_exporters.channels._time_limit import TIMES, limit

HTML = """<!doctype html>
<html lang="en"><body>
<p><img src="cid:{cid}" alt="{words}"></p>
<p>{words}</p>
<pre style="white-space: pre-wrap">{text}</pre>
</body></html>
"""
PERMANENT = (550, 551, 552, 553, 554)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The SMTP server, the sender and the receivers."""

    server: str = ""  # must be set: host name or address of the SMTP server
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 25  # often 587 with starttls
    sender: str = ""  # must be set: the address in From
    to: tuple[str, ...] = ()  # must be set: [ops@example.org]
    # starttls: refuse to go on without; tls: from the first byte (port 465); none: for a relay on this node
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""  # for SMTP AUTH, with a password_file
    password_file: Path | None = None  # read anew for each message
    ca_file: Path | None = None  # of a private certificate authority
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0  # of each answer


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """Yield (option name, what is wrong with it): no server, bad addresses, a user without a password file, a password without encryption."""
    if not options.server:
        yield "server", "is missing: name the SMTP server"
    for name, addresses in (("sender", (options.sender,)), ("to", options.to or ("",))):
        if not all("@" in one and one.isprintable() and " " not in one for one in addresses):
            yield name, "needs addresses like ops@example.org"
    if options.user and options.password_file is None:
        yield "user", "has no password_file"
    if options.user and options.security == "none":
        yield "security", "is none: a password would be sent in the clear"


class Email:
    """Sends one mail per message. A message that is sent again has the same Message-ID."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._settled: tuple[str, frozenset[str]] = ("", frozenset())  # message, who needs no more

    def send(self, message: EventMessage) -> None:
        """Send the mail. Called again after a failure, it leaves out receivers that have it already or refused it for good.

        Raises OSError where a later try may succeed, MessageRefusedError where it may not.
        """
        message_id, settled = self._settled
        to = [one for one in self._options.to if message_id != message.id or one not in settled]
        try:
            refused = self._hand_over(message, to)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            _give_up({error.smtp_code}, f"the server answers {error.smtp_code}")
        except smtplib.SMTPException as error:
            reason = f"{type(error).__name__}: {error}"
            reason = "gave no answer in time" if "timed out" in reason else reason
            raise OSError(f"{self._options.server}: {reason}") from None
        except TimeoutError:
            raise OSError(f"{self._options.server}: gave no answer in time") from None
        except OSError as error:
            raise OSError(f"{self._options.server}: {error.strerror or error}") from None
        self._settle(message, {one: code for one, (code, _) in refused.items()})

    def _hand_over(self, message: EventMessage, to: list[str]) -> "smtplib._SendErrs":
        with self._connect() as server:
            self._start_session(server)
            return server.send_message(mail_of(message, self._options), to_addrs=to)

    def _settle(self, message: EventMessage, refused: dict[str, int]) -> None:
        """`refused`: address -> code. Raises for those who may take it later, and for those who never will."""
        later = [one for one, code in refused.items() if code not in PERMANENT]
        self._settled = "", frozenset()
        if later:
            self._settled = message.id, frozenset(self._options.to) - frozenset(later)
            raise OSError(f"{self._options.server}: {_addresses(len(later))} not accepted yet")
        if refused:
            raise MessageRefusedError(f"{_addresses(len(refused))} not accepted")

    def _connect(self) -> "_Server":
        options = self._options
        if options.security == "tls":
            return _SecureServer(
                options.server,
                options.port,
                _own_name(),
                timeout=options.timeout,
                context=self._context(),
            )
        return _Server(options.server, options.port, _own_name(), timeout=options.timeout)

    def _start_session(self, server: smtplib.SMTP) -> None:
        if self._options.security == "starttls":
            server.starttls(context=self._context())
        if self._options.user:
            server.login(self._options.user, secret(self._options.password_file))

    def _context(self) -> ssl.SSLContext:
        file = self._options.ca_file
        return ssl.create_default_context(cafile=str(file) if file else None)


class _Server(smtplib.SMTP):
    """No answer takes longer than a few timeouts, though it drips."""

    def getreply(self) -> tuple[int, bytes]:
        """The server's next reply. Raises where it takes longer than `TIMES` timeouts in all."""
        with limit(TIMES * self.timeout, lambda: self.sock):
            return super().getreply()


class _SecureServer(_Server, smtplib.SMTP_SSL):
    """The same, by TLS from the first byte."""


def mail_of(message: EventMessage, options: Options) -> EmailMessage:
    """The message as a mail. The subject has no line ends, so no text of a job can add a header."""
    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.to)
    mail["Date"] = formatdate()
    mail["Message-ID"] = f"<{message.id}@mldebug>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Mldebug-Kind"] = message.kind  # for filters
    mail["X-Mldebug-State"] = message.state
    mail.set_content(plain_text(message))
    if message.map is not None:
        _add_picture(mail, message, message.map)
    return mail


def _add_picture(mail: EmailMessage, message: EventMessage, ranks: RankMap) -> None:
    """Add the same as HTML with the map of the ranks, a picture inside the mail: nothing is loaded from elsewhere."""
    cid, words = f"ranks.{message.id}@mldebug", legend(ranks)
    text = plain_text(message)
    mail.add_alternative(
        HTML.format(cid=cid, words=escape(words), text=escape(text)), subtype="html"
    )
    page = mail.get_payload(1)
    if isinstance(page, EmailMessage):
        page.add_related(
            picture(ranks),
            *("image", "png"),
            cid=f"<{cid}>",
            disposition="inline",
            filename="ranks.png",
        )


def _addresses(count: int) -> str:
    return "1 of the addresses was" if count == 1 else f"{count} of the addresses were"


def _own_name() -> str:
    """For the greeting. The library would ask the DNS, which may take minutes."""
    name = "".join(
        one for one in socket.gethostname() if one.isascii() and (one.isalnum() or one in "-.")
    )
    return name or "localhost"


def _give_up(codes: set[int], reason: str) -> NoReturn:
    """5xx about an address or a mail is final; about a login a person may mend it."""
    if codes and all(code in PERMANENT for code in codes):
        raise MessageRefusedError(reason)
    raise OSError(reason)


def create(options: Options) -> Channel:
    """Build the channel `email`: e-mail, by an SMTP server."""
    return Email(options)
