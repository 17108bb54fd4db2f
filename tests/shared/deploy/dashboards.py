"""The dashboards of deploy/grafana/ as they are imported, and every query in them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "deploy/grafana/dashboards"
BOARDS: dict[str, Any] = {
    file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))
}  # fmt: skip


@dataclass(frozen=True)
class Asking:
    """One query: where it stands, its PromQL with the variables of Grafana, its legend."""

    name: str
    expression: str
    legend: str
    annotation: bool = False


def titled(board: Any, panel: Any) -> str:
    """A panel, for people."""
    return f"{board['uid']}: {panel['title']}"


def queries() -> Iterator[Asking]:
    """Of all panels and annotations."""
    for board in BOARDS.values():
        for one in board["annotations"]["list"]:
            yield Asking(f"{board['uid']}: {one['name']}", one["expr"], one["textFormat"], True)
        for panel in board["panels"]:
            for target in panel["targets"]:
                name = f"{titled(board, panel)} {target['refId']}"
                yield Asking(name, target["expr"], target["legendFormat"])
