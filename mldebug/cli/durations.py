"""Reads options that say for how long, or since when."""

from mldebug.core.errors import UsageError
from mldebug.core.units import duration_words, parse_duration


def bounded_duration(option: str, text: str, least: float, most: float, example: str) -> float:
    """The seconds of an option's text, such as 60s. Raises UsageError for a time that is none, or is not between `least` and `most`
    seconds. `example`: how it may be written.
    """
    try:
        seconds = parse_duration(text)
        if not least <= seconds <= most:
            raise ValueError(f"it may be {duration_words(least)} to {duration_words(most)}")
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", f"write it like {example}") from error
    return seconds


def since_seconds(text: str) -> float:
    """The seconds of `--since`, such as 2h. Raises UsageError for a time that is none."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--since: {error}", "write it like 2h, 30m or 7d") from None
