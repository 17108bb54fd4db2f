"""Records of the kernel's log that were overwritten before anybody read them: how many, and a gap while it is recent."""

from mldebug.core.model import Gap

TOLD = 600.0  # seconds for which a loss is told of


class Losses:
    """Counts them. Belongs to one thread; times are of a monotonic clock."""

    def __init__(self) -> None:
        self.all = 0
        self._lately = 0
        self._at = 0.0

    def add(self, records: int, at: float) -> None:
        """So many were lost; 0 for none."""
        if records > 0:
            self.all += records
            self._lately = records + (self._lately if self._recent(at) else 0)
            self._at = at

    def gap(self, now: float) -> Gap | None:
        """The losses in words, until none has come for a while."""
        if not self._recent(now):
            return None
        many = "record was" if self._lately == 1 else "records were"
        return Gap(
            what="lost kernel records",
            reason=f"{self._lately} {many} overwritten before the agent read them: an Xid or an OOM kill may be missing",
            way_out="see what floods the log: dmesg | tail -50; a larger one: log_buf_len=16M for the kernel",
        )

    def _recent(self, now: float) -> bool:
        return self._lately > 0 and now - self._at < TOLD
