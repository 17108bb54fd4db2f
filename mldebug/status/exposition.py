"""The interface of what serves metrics to a scraper."""

from typing import Protocol

from mldebug.status.snapshot import Snapshot


class Exposition(Protocol):
    """Renders snapshots of the agent in the format of a monitoring system. Thread-safe."""

    def publish(self, snapshot: Snapshot) -> None:
        """Set the newest snapshot."""
        ...

    def scrape(self, accept: str = "", *, names: bool = True) -> tuple[bytes, str] | None:
        """The last snapshot as (body, content type), in a format that the Accept header allows; None before the first one.

        Without `names`, pseudonyms replace the names of users and jobs, and the paths of their
        folders.
        """
        ...

    def render(self, snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
        """Render this snapshot, for example one user's part of it. Returns body and content type."""
        ...
