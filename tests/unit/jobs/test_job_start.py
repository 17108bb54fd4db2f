"""A job that takes this process's place, and one that cannot."""

import signal

import pytest

from mldebug.core.errors import UsageError
from mldebug_agents.jobs.job_start import IGNORED, become


def test_a_program_that_is_not_there_leaves_the_signals_as_they_were() -> None:
    """With SIGPIPE at its default, the next write to a closed connection would end who goes on."""
    before = [signal.getsignal(number) for number in IGNORED]

    with pytest.raises(UsageError, match="cannot be started: no such file"):
        become(["/nosuch/program"], {})

    assert [signal.getsignal(number) for number in IGNORED] == before
