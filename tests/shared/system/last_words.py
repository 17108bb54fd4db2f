"""What the agents of a test said last: shown where it fails, since their folders are gone by then."""

LENGTH = 6000  # characters of each
KEPT: list[tuple[str, str]] = []  # (whose, what it said), of the test that runs now


def keep(whose: str, text: str) -> None:
    """Keep the end of a log until the next test begins."""
    KEPT.append((whose, text[-LENGTH:]))
