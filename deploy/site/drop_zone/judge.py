"""What the drop zone does with the files that were dropped: the commands of mldebug that take such files, one after another. Runs in the browser."""

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from mldebug.cli.commands import diagnose, flight_recorder, logs
from mldebug.core.errors import MldebugError


def judge(folder: Path) -> str:
    """The answer about the files in a folder, as JSON: `command` (which command understood them; "" where none did), `text` (what it printed), and `html` (the
    report; "" where it makes none). Stacks and archives are tried first, then Flight Recorder dumps, then each file as a training log.
    """
    page = Path(tempfile.mkdtemp()) / "report.html"
    files = sorted(file for file in folder.iterdir() if file.is_file())
    place = files[0] if len(files) == 1 else folder  # an archive is a file
    tries = [
        ("mldebug diagnose", diagnose.command, [str(place), "--html", str(page)]),
        ("mldebug flight-recorder", flight_recorder.command, [str(folder)]),
        *(("mldebug logs try", logs.try_file, [str(file)]) for file in files),
    ]
    troubles = []
    for name, command, arguments in tries:
        understood, text = _run(command, arguments)
        if understood:
            html = page.read_text(encoding="utf-8") if page.exists() else ""
            return json.dumps({"command": name, "text": text, "html": html})
        troubles.append(f"{name}: {text}")
    return json.dumps({"command": "", "text": "\n".join(dict.fromkeys(troubles)), "html": ""})


def _run(command: click.Command, arguments: Sequence[str]) -> tuple[bool, str]:
    """Whether a command understood the files, and what it printed or why not. A log without a step is not understood."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            command.main([*arguments], standalone_mode=False)
    except MldebugError as error:
        return False, error.message
    except SystemExit as end:
        is_log = command is logs.try_file
        return not (is_log and end.code), printed.getvalue()
    return True, printed.getvalue()
