"""Make text that a job wrote harmless: for terminals (`clean`) and for secrets (`redact`, `redact_argv`).

Every function is pure and takes linear time, also on one line of many megabytes: repeats are possessive or bounded,
and no pattern can start inside its own failed match. Secrets are found by shape (`hf_…`, `AKIA…`, a URL's user and
password, the path of a webhook) and by the name in front of them (`WANDB_API_KEY=`, `"password": …`, `--token X`); a
wrongly hidden word is cheap, a shown key is not. What has neither a name nor a shape stays (`mysql -pX`). `clean` before
`redact`, and cut last: `safe_line` does all three in that order.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

HIDDEN = "***"
SHORT = 256  # characters of a text that is remembered with its answer

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])(?:[^\x07\x1b\x9c\n]*+(?:\x07|\x1b\\|\x9c))?"  # OSC, DCS …
    r"|\x1b[ -/]*+[0-~]?"  # two-character and charset escapes
)
_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)

_KEYS = (
    r"(?:api|access|secret|private|auth|account|encryption|signing|master|shared|session|storage"
    r"|deploy|service|ssh|license|client|sas|openai|anthropic|wandb|hf|huggingface|azure|aws|gcp|google|gemini"
    r"|cohere|mistral|groq|deepseek|openrouter|comet|neptune|minio|datadog|sentry|sendgrid|slack)[-_. ]?key"
)
_CAPITALS = (  # of environment variables: OPENAI_KEY, DB_PASS
    r"(?-i:(?:(?<!CACHE)(?<!SORT)(?<!PRIMARY)(?<!FOREIGN)(?<!PARTITION)(?<!GROUP)_KEY|_PASS|_PW)(?![A-Za-z0-9]))"
)
_OF_SERVICES = r"(?<![a-z])(?:db|smtp|imap|mail|user|ssh|ftp|redis|sudo|root|admin|login|proxy|ldap|http)[-_.]?pass(?![\w.-])"
_SHORT = r"(?:(?<=--)(?:pass|pw|pwd)|[-_]pw|(?<![a-z])auth)(?![\w.-])"
_HINTS = ("key", "pass", "pw", "auth", "secret", "credential", "token", "wandb")  # in every name
_HARMLESS = r"(?![-_.](?:files?|path|dir|count|ids|len|length|type|names?)(?![a-z]))"
_NAME = (
    rf"(?:{_KEYS}|{_CAPITALS}|{_OF_SERVICES}|{_SHORT}|passwords?|passwd|passphrase|[-_]pwd|secrets?|credentials?|token)"
    rf"(?![a-z]){_HARMLESS}(?:[-_.][\w.-]{{0,60}}+)?"
)
_SEPARATOR = r"\\{0,3}[\"']?[ \t]{0,4}(?:=>|[=:])[ \t]{0,4}"
_VALUE = (
    r"(?:(?P<quote>\"|')(?:\\.|(?!(?P=quote))[^\n\\])*+(?:(?P=quote)|(?=\n|\Z))"
    r"|[\\\"']{0,4}+(?:[^\s\"'&\\]|\\(?![\"']))++)"
)
_NAMED = re.compile(rf"(?P<name>{_NAME}{_SEPARATOR}){_VALUE}", re.IGNORECASE)
_NAMES_ONE = re.compile(_NAME, re.IGNORECASE)
_STRING = re.compile(r"(?P<quote>\"|')(?:\\.|(?!(?P=quote))[^\\])*+(?:(?P=quote)|\\?\Z)")
_FLAGGED = re.compile(
    rf"(?P<name>(?<![\w-])--?(?:[a-z0-9]{{1,20}}+[-_.]){{0,5}}?{_NAME}[ \t]{{1,4}}(?!-)){_VALUE}",
    re.IGNORECASE,
)
_SPOKEN = re.compile(  # a value without a sign before it: long, and no word
    r"(?P<name>(?:(?-i:[A-Z0-9]_(?:KEY|TOKEN|SECRET|PASSWORD|PASS))|\b(?:passphrase|password|passwd)(?: is)?)[ \t]{1,4}+)"
    r"(?=[^\s\d]{0,80}\d)(?=[^\sa-z]{0,80}[a-z])[\w+/=.!@#$%^&*~-]{6,}+",
    re.IGNORECASE,
)
_BLOCK = re.compile(  # a YAML text of many lines
    rf"^(?P<indent>[ \t]*+)(?P<name>[\w.\"'-]{{0,60}}?{_NAME}[\"']?[ \t]{{0,4}}:[ \t]{{0,4}})[|>][-+\d]{{0,2}}[ \t]*+\n"
    r"(?:(?P=indent)[ \t]++[^\n]*+(?:\n|\Z))++",
    re.IGNORECASE | re.MULTILINE,
)
_SIGNED = re.compile(
    r"([?&](?:sig|(?:x-(?:amz|goog)-)?signature|code)=)[^\s&\"'<>]++", re.IGNORECASE
)
_WEBHOOK = re.compile(  # whoever has the address may write there
    r"(://(?:[\w.-]{0,60}?hooks?\.[\w.-]{1,100}+|[\w.:-]{1,100}+(?=/(?:api/)?webhooks?\w{0,8}/))"
    r"/(?:(?:services|workflows|triggers|api|webhooks?\w{0,8})/){0,3})[^\s\"'<>]++",
    re.IGNORECASE,
)
_WANDB = re.compile(r"(wandb[^\n]{0,80}?)(?<![0-9a-z])[0-9a-f]{40}(?![0-9a-z])", re.IGNORECASE)
_HEADER = re.compile(
    r"((?:authorization|cookie)\\{0,3}[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\"'\n]++", re.IGNORECASE
)
_BEARER = re.compile(r"(\bbearer[ \t]{1,4})[\w.~+/=-]{8,}+", re.IGNORECASE)
_USERINFO = re.compile(r"://(?:[^\s/@\"'<>]*+@)++")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf|api_org)_[A-Za-z0-9]{16,}+"
    r"|(?:sk|pk|rk)[-_][\w-]{16,}+|nvapi-[\w-]{16,}+|xox[a-z]-[\w-]{10,}+|glpat-[\w-]{16,}+|pypi-[\w-]{16,}+"
    r"|gh[a-z]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+|npm_[A-Za-z0-9]{20,}+|wandb_v1_\w{16,}+|dapi[0-9a-f]{32}+"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}+|AIza[\w-]{30,}+|ya29\.[\w-]{10,}+"
    r"|(?<![\w-])eyJ[\w-]{10,}+(?:\.[\w-]*+){1,4}"
    r")"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)

_OPTION = re.compile(
    rf"(?P<flag>(?:[-+]{{0,3}}[\w./@-]{{0,200}}?){_NAME})(?:=(?P<value>.*))?",
    re.IGNORECASE | re.DOTALL,
)
# "token=5" counts something; a number after "password" is a password
_COUNT = re.compile(r"[-+]?\d{1,12}(?:\.\d{0,6})?[,;:)\]}]{0,4}")


def clean(text: str, limit: int = 200) -> str:
    """Return one printable line of at most `limit` characters, ending in `…` where it was cut.

    Line breaks and tabs become spaces; escape sequences, control and zero-width characters, bidirectional overrides
    and lone surrogates go.
    """
    return _cut(_printable(text), limit)


def redact(text: str) -> str:
    """The text with every key, token, password and credential that can be recognised replaced by `***`."""
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _USERINFO.sub(f"://{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _WEBHOOK.sub(rf"\1{HIDDEN}", text)
    text = _SIGNED.sub(rf"\1{HIDDEN}", text)
    text = _BLOCK.sub(rf"\g<indent>\g<name>{HIDDEN}\n", text)
    text = "\n".join(map(_hide_named, text.split("\n")))
    return _SHAPES.sub(HIDDEN, text)


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a command line, as many as came in, with secrets hidden in all forms: `--api-key X`, `--token=X`,
    `wandb.api_key=X`.
    """
    hidden: list[str] = []
    value_follows = ""
    for argument in argv:
        option = _OPTION.fullmatch(argument) if len(argument) < 4096 else None
        if value_follows and not argument.startswith("--"):
            hidden.append(argument if _is_count(value_follows, argument) else HIDDEN)
            value_follows = ""
            continue
        waits = option is not None and option["value"] is None and argument.startswith("-")
        value_follows = argument if waits else ""
        hidden.append(_hide_option(argument, option))
    return tuple(hidden)


def redact_source(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a program without the strings in each line that names a secret and in the one after it.

    Its value may stand there as the language allows: behind a type, in brackets, after a line that goes on.
    """
    named = False
    for line in lines:
        before, named = named, _NAMES_ONE.search(line) is not None
        yield _STRING.sub(rf"\g<quote>{HIDDEN}\g<quote>", line) if named or before else line


def safe_line(text: str, limit: int = 200) -> str:
    """The text as one printable line without secrets, of at most `limit` characters: cleaned, then redacted, then cut."""
    return (_safe_again if len(text) <= SHORT else _safe)(text, limit)


def _safe(text: str, limit: int) -> str:
    return _cut(redact(_printable(text)), limit)


# While a job stands still, each look tells of each rank the same few sentences as the look before
_safe_again = lru_cache(maxsize=256)(_safe)


def _printable(text: str) -> str:
    return _INVISIBLE.sub("", _BREAKS.sub(" ", _ESCAPES.sub("", text)))


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…" if limit > 0 else ""


def _hide_named(line: str) -> str:
    """What a name before it makes a secret. Few lines have such a name, and to look for all of them is dear."""
    folded = line.casefold()
    if not any(hint in folded for hint in _HINTS):
        return line
    line = _FLAGGED.sub(_hide_value, line)
    line = _NAMED.sub(_hide_value, line)
    line = _SPOKEN.sub(rf"\g<name>{HIDDEN}", line)
    return _WANDB.sub(rf"\1{HIDDEN}", line)


def _hide_value(match: re.Match[str]) -> str:
    if _is_count(match["name"], match[0][len(match["name"]) :]):
        return match[0]
    quote = match["quote"] or ""
    return f"{match['name']}{quote}{HIDDEN}{quote}"


def _hide_option(argument: str, option: re.Match[str] | None) -> str:
    if option is None or not option["value"] or _is_count(option["flag"], option["value"]):
        return redact(argument)
    return f"{option['flag']}={HIDDEN}"


def _is_count(name: str, value: str) -> bool:
    return "token" in name.lower() and _COUNT.fullmatch(value) is not None
