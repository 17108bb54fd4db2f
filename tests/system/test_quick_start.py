"""The quick start alone, on a bare Debian, ends with a Prometheus that shows a captured hang."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.machine import base_files, need
from system.quick_start import BARE, PAGE, bare_debian, parts, query_labels

MEASURED = re.compile(r"\*\*(\d+) s\*\* on .*? (\d+) s install packages", re.DOTALL)
PORTS = (9753, 9099)
FIVE_MINUTES = 300


@pytest.fixture(scope="module")
def bare() -> Iterator[Path]:
    """The files of a Debian that has nothing but its base system."""
    need("debootstrap", "systemd-nspawn")
    with base_files(packages=BARE) as base:
        yield base


def written() -> re.Match[str]:
    """The seconds on the page: for all of it, and for packages."""
    found = MEASURED.search(PAGE.read_text())
    assert found is not None
    return found


def slowed() -> float:
    """How much longer it may take here: by as much as there is more to do than twice the cores can; 1 is the least."""
    return max(1.0, os.getloadavg()[1] / (2 * (os.cpu_count() or 1)))


def test_the_page_says_how_long_it_takes() -> None:
    whole, install = map(int, written().groups())
    assert 60 < whole < FIVE_MINUTES
    assert install < whole


def test_a_block_of_another_language_is_not_typed() -> None:
    page = "## 1. A\n```sh\none\n```\n```text\ntold\n```\n## 2. B\ntext\n```sh\ntwo\nthree\n```\n"
    assert [(one.title, one.commands) for one in parts(page)] == [
        ("1. A", "one\n"),
        ("2. B", "two\nthree\n"),
    ]


@pytest.mark.scenario
@pytest.mark.system
@pytest.mark.timeout(1500)
def test_a_command_that_fails_is_a_failure_here(bare: Path) -> None:
    with bare_debian(bare) as shell:
        shell.type("test ! -e /usr/bin/python3  # it is bare")
        with pytest.raises(AssertionError, match="the shell ended"):
            shell.type("mldebug doctor")


@pytest.mark.scenario
@pytest.mark.system
@pytest.mark.timeout(1500)
def test_it_ends_with_a_prometheus_that_shows_a_captured_hang(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in PORTS:
        with socket.socket() as one:
            assert one.connect_ex(("127.0.0.1", port)), f"port {port} is taken on this machine"
    *steps, last = parts(PAGE.read_text())
    with bare_debian(bare) as shell:
        times = [shell.type(part.commands) for part in steps]
        (incident,) = query_labels("mldebug_incident_open_info")
        alerts = query_labels('ALERTS{alertname="MldebugRunStalled"}')
        times.append(shell.type(last.commands))
    assert incident["kind"] == "stall"
    assert incident["verdict"] == "rank_waiting"
    assert [alert["alertstate"] for alert in alerts] in (["pending"], ["firing"])
    text = "".join(shell.printed)
    assert "Rank 2 sleeps in next_batch" in text, text[-3000:]
    assert incident["report"] in text
    whole, slower = int(written()[1]), slowed()
    assert sum(times) < FIVE_MINUTES * slower, "the page promises five minutes"
    assert whole / 2 < sum(times) < whole * 2 * slower, "the page says another time"
    with capsys.disabled():
        print(
            f"\nthe quick start took {sum(times):.0f} s, of which {times[0]:.0f} s install packages"
        )
