"""docs/gpu-validation.md from what tests/gpu/validate.py has found.

    PYTHONPATH=tests python -m gpu.page validation.json > docs/gpu-validation.md

A part that did not end well is told as such, with what it has found until then.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu.sections import SECTIONS, Found
from gpu.tables import cell, table

HEAD = """# GPU validation

What is claimed of GPUs, tried on real ones by `tests/gpu/validate.py`; this page is made of its figures by
`tests/gpu/page.py`. Everything else about GPUs is tested on recordings, without one: see [gpus.md](gpus.md).
"""


def page(found: Found) -> str:
    """All of it, as Markdown."""
    parts: Found = found.get("parts", {})
    lines = [HEAD, *_machine(found.get("machine", {})), "", *_summary(parts)]
    for name, (title, render) in SECTIONS.items():
        if name in parts:
            lines += ["", f"## {title}", "", *_section(parts[name], render)]
    return "\n".join(lines).rstrip() + "\n"


def _section(part: Found, render: Callable[[Found], Iterator[str]]) -> Iterator[str]:
    if part["status"] != "done":
        yield f"**This part {_ended(part['status'])}**: {cell(part.get('error') or 'no reason')}"
        yield ""
    try:
        yield from render(part.get("data", {}))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        yield f"(what it found cannot be shown in full: {type(error).__name__} {error})"


def _ended(status: str) -> str:
    return {"failed": "failed", "timed out": "did not end in time", "left out": "was left out"}.get(
        status, status
    )


# --- machine and summary -------------------------------------------------------------------------


def _machine(found: Found) -> Iterator[str]:
    packages = found.get("packages", {})
    versions = ", ".join(f"{name} {one}" for name, one in packages.items() if one)
    yield f"{found.get('at', '')}, {found.get('cores', '?')} cores, Linux {found.get('kernel', '?')}, Python {found.get('python', '?')}."  # fmt: skip
    yield f"GPUs (name, driver, power limit): {'; '.join(found.get('gpus', ())) or 'not told'}."
    yield f"Packages: {versions}."


def _summary(parts: Found) -> Iterator[str]:
    rows = [
        (SECTIONS.get(name, (name,))[0], one["status"], one.get("seconds"))
        for name, one in parts.items()
    ]
    yield from table(("part", "ended", "seconds"), rows)


def main() -> None:
    """Print the page."""
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
