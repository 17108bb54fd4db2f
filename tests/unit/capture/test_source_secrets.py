"""The source lines of a culprit, as a report gets them."""

from mldebug.core.model import SourceExcerpt
from mldebug_agents.capture.process_captures import _without_secrets


def test_no_secret_of_a_program_stands_in_a_report() -> None:
    lines = ("password = \\", "    'hunter2'", "token: str = 'hunter2'", "time.sleep(9)", "x = 'y'")
    shown = _without_secrets(SourceExcerpt(path="/a.py", line=4, first=1, lines=lines))
    assert shown is not None
    assert "hunter2" not in str(shown.lines)
    assert shown.lines[4] == "x = 'y'"
    assert len(shown.lines) == 5
