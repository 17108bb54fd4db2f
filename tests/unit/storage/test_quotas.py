"""Quota tools that answer, print nothing, another language or an error, are missing, or hang."""

from collections.abc import Iterator

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import QuotaConfig, StorageConfig
from mldebug.storage.filesystems.quotas import QuotaError, amount, read_quota
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.filesystems.quotas import QuotaCollector
from shared.storage.nodetools import with_config

IDRQUOTA = "Bytes:  430.0 TB (86.10%)\nInodes: 1.2 M (41%)\n"
PERCENT = r"\((?P<percent>[0-9.]+)%\)"
LFS = r"^\s*/\S+\s+(?P<used>\S+)\s+\S+\s+(?P<limit>\S+)"


def test_the_fullest_of_all_matches_counts() -> None:
    assert read_quota(PERCENT, IDRQUOTA).share == pytest.approx(0.861)


def test_one_that_has_no_limit_hides_no_other() -> None:
    result = read_quota(LFS, "  /home  5T  -  unlimited\n  /work  1T  -  2T\n")
    assert result.share == 0.5


def test_amounts_have_units() -> None:
    result = read_quota(LFS, "Filesystem used quota limit\n  /lustre  1.5T*  1T  2T  -\n")
    assert (result.share, result.limit) == (0.75, 2 * 1024**4)
    assert amount("20GiB") == 20 << 30


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        (PERCENT, " \n", "printed nothing"),
        (PERCENT, "Octets utilisés : 86,1 pour cent", "matches the pattern"),
        (LFS, "  /lustre  none  1T  2T", "no amount"),
        (LFS, "  /lustre  5T  0  0", "tells no limit"),
        (LFS, "  /lustre  5T  0  none", "tells no limit"),
        (LFS, "  /lustre  5T  0  no", "no amount"),
        (r"(?P<percent>\S+)%", "1.2.3%", "no number"),
        (r"(\d+)", "12", "needs a group"),
        (r"(", "12", "pattern is none"),
    ],
)
def test_what_cannot_be_read_is_said_and_never_taken_for_room(
    pattern: str, text: str, why: str
) -> None:
    with pytest.raises(QuotaError, match=why):
        read_quota(pattern, text)


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def test_tools_are_asked_in_children_that_may_fail_or_hang(tools: NodeTools) -> None:
    shell = ("/bin/sh", "-c")
    config = Config(
        storage=StorageConfig(
            quotas={
                "full": QuotaConfig(command=(*shell, "echo '(90%)'"), pattern=PERCENT),
                "fine": QuotaConfig(
                    command=(*shell, 'test "$LC_ALL" = C && echo "(10%)"'), pattern=PERCENT
                ),
                "failed": QuotaConfig(
                    command=(*shell, "echo '(10%)'; echo 'no such server' >&2; exit 3"),
                    pattern=PERCENT,
                ),
                "missing": QuotaConfig(command=("/no/such/tool",), pattern=PERCENT),
                "hangs": QuotaConfig(command=(*shell, "sleep 100"), pattern=PERCENT, timeout=0.5),
            }
        )
    )
    desk = QuotaCollector(with_config(tools.context, config))
    desk.look(1.0, [])
    assert [alarm.subject for alarm in desk.alarms()] == ["full"]
    assert {row["quota"] for row in desk.status()["quotas"]} == {"full", "fine"}
    why = {gap.what: gap.reason for gap in desk.gaps()}
    assert why["quota failed"] == "the tool failed with exit code 3: no such server"
    assert "could not be run" in why["quota missing"]
    assert "not answered" in why["quota hangs"]
    failed = [
        one.labels[0]
        for one in desk.samples()
        if one.metric == "mldebug_quota_failed" and one.value
    ]
    assert failed == ["failed", "missing", "hangs"]
