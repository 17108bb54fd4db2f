"""E-mail, by an SMTP server."""

import smtplib
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mldebug.events.message import plain_text
from mldebug.events.model import Message, RefusedError
from mldebug.settings.units import Duration
from mldebug_exporters.sending.secrets import secret

PERMANENT = (550, 551, 552, 553, 554)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which server, from whom and to whom."""

    server: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 25
    sender: str = ""
    to: tuple[str, ...] = ()
    # starttls: refuse to go on without; tls: from the first byte (port 465); none: for a relay on this node
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0


def problems(options: Options) -> Iterator[tuple[str, str]]:
    """What no type can say."""
    if not options.server:
        yield "server", "is missing: name the SMTP server"
    for name, told in (("sender", (options.sender,)), ("to", options.to or ("",))):
        if not all("@" in one and one.isprintable() and " " not in one for one in told):
            yield name, "needs addresses like ops@example.org"
    if options.user and options.password_file is None:
        yield "user", "has no password_file"
    if options.user and options.security == "none":
        yield "security", "is none: a password would be sent in the clear"


class Email:
    """One mail for each message, with a Message-ID that a double shares."""

    repeat = 0.0

    def __init__(self, options: Options) -> None:
        self._options = options

    def send(self, message: Message) -> None:
        """Deliver it, or raise."""
        try:
            with self._connect() as server:
                self._greet(server)
                refused = server.send_message(mail_of(message, self._options))
        except smtplib.SMTPRecipientsRefused as error:
            _give_up({code for code, _ in error.recipients.values()}, "no address was accepted")
        except smtplib.SMTPResponseException as error:
            _give_up({error.smtp_code}, f"the server answers {error.smtp_code}")
        except smtplib.SMTPException as error:
            said = f"{type(error).__name__}: {error}"
            said = "gave no answer in time" if "timed out" in said else said
            raise OSError(f"{self._options.server}: {said}") from None
        except TimeoutError:
            raise OSError(f"{self._options.server}: gave no answer in time") from None
        except OSError as error:
            raise OSError(f"{self._options.server}: {error.strerror or error}") from None
        else:
            if refused:
                raise RefusedError(f"{len(refused)} of the addresses were not accepted")

    def _connect(self) -> smtplib.SMTP:
        options = self._options
        if options.security == "tls":
            return smtplib.SMTP_SSL(
                options.server, options.port, timeout=options.timeout, context=self._context()
            )
        return smtplib.SMTP(options.server, options.port, timeout=options.timeout)

    def _greet(self, server: smtplib.SMTP) -> None:
        if self._options.security == "starttls":
            server.starttls(context=self._context())
        if self._options.user:
            server.login(self._options.user, secret(self._options.password_file))

    def _context(self) -> ssl.SSLContext:
        file = self._options.ca_file
        return ssl.create_default_context(cafile=str(file) if file else None)


def mail_of(message: Message, options: Options) -> EmailMessage:
    """The mail. The subject is one clean line, so nothing in it can become a header."""
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
    return mail


def _give_up(codes: set[int], said: str) -> None:
    """5xx about an address or a mail is final; about a login a person may mend it."""
    if codes and all(code in PERMANENT for code in codes):
        raise RefusedError(said)
    raise OSError(said)


def create(options: Options) -> Email:
    """Build the channel."""
    return Email(options)
