"""What serves metrics to a scraper."""

from typing import Protocol

from mldebug.status.snapshot import Snapshot


class Exposition(Protocol):
    """Shows snapshots of the agent in the format of a monitoring system. Thread-safe."""

    def publish(self, snapshot: Snapshot) -> None:
        """Take over a newer snapshot."""
        ...

    def scrape(self, accept: str = "", *, names: bool = True) -> tuple[bytes, str] | None:
        """The last snapshot as (body, content type) in a format that the Accept header allows; None before the first one.

        Without `names` pseudonyms stand for users, jobs and their folders.
        """
        ...

    def render(self, snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
        """Any snapshot as (body, content type), such as one user's own view."""
        ...
