"""The storage desk as `status --storage` tells it, as lines and as JSON. Pure."""

from collections.abc import Iterator

import msgspec

from mldebug.core.redact import clean
from mldebug.status.gpu_lines import StatusLine
from mldebug.storage.filesystems.state import StorageState

WIDEST = 300
NOTHING = "No filesystem is looked at: no job is seen here, and storage.paths names none."


def storage_lines(told: StorageState) -> Iterator[StatusLine]:
    """Alarms first, then what was measured by heading, then what could not be had."""
    for alarm in told.alarms:
        yield StatusLine(clean(f"! {alarm.whole}", WIDEST), True)
    if told.rows.get("filesystems") == ():
        yield StatusLine(NOTHING)
    for heading, rows in told.rows.items():
        if not rows:
            continue
        yield StatusLine(f"{heading.replace('_', ' ').capitalize()}:")
        for row in rows:
            yield StatusLine(f"  {clean(str(row.get('line', '')), WIDEST)}")
    if told.gaps:
        yield StatusLine("Not seen:")
    for gap in told.gaps:
        way = f" → {gap.way_out}" if gap.way_out else ""
        yield StatusLine(f"  {clean(f'{gap.what}: {gap.reason}{way}', WIDEST)}")


def storage_json(told: StorageState) -> str:
    """One object: a list for each heading, `alarms` and `gaps`."""
    rows = {"filesystems": (), "quotas": (), **told.rows}
    whole = {**rows, "alarms": told.alarms, "gaps": told.gaps}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()
