"""What `mldebug why` prints: the run before of the same job, and long values where they begin to differ."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mldebug.core.plugins import NoOptions
from mldebug.jobs.run_records.model import RunRecord, RunSummary, StoredRecord
from mldebug_agents.cli.commands import why

WELL = why.WELL


def recorded(run: str, name: str = "train.py", *, at: float, outcome: str = WELL, **more: str) -> RunRecord:  # fmt: skip
    given = {"LD_LIBRARY_PATH": more.get("path", "/lib")}
    return RunRecord(
        run=run, name=name, user=more.get("user", "alice"), script=more.get("script", "train.py"), world_size=8,
        started_at=at, is_over=True, outcome=outcome, arguments=("python", "train.py"), environment=given,
    )  # fmt: skip


def printed(monkeypatch: pytest.MonkeyPatch, records: list[RunRecord], *words: str) -> str:
    by_run = {one.run: one for one in records}
    summaries: tuple[RunSummary, ...] = tuple(StoredRecord.of(one).summary for one in records)
    monkeypatch.setattr(why, "_recorded", lambda _: (Path("/none"), summaries))
    monkeypatch.setattr(why, "record_of_run", lambda _, run: by_run[run])
    monkeypatch.setattr(why, "figures_of_run", lambda _, run: None)
    done = CliRunner().invoke(why.create(NoOptions()), [*words])
    return done.output + str(done.exception or "")


@pytest.mark.parametrize("before", ["train.py 4711.0", "train.py 9.0"])
def test_the_number_of_a_slurm_job_in_its_name_makes_it_no_other_job(
    monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    runs = [recorded("aaa", before, at=1.0), recorded("bbb", "train.py 4712.0", at=2.0)]
    assert printed(monkeypatch, runs, "bbb").startswith("A  aaa ")


def test_a_run_of_the_very_name_goes_before_one_with_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    runs = [recorded("aaa", "train.py exp7", at=1.0, outcome="exit code 1"), recorded("bbb", "train.py exp8", at=2.0), recorded("ccc", "train.py exp7", at=3.0)]  # fmt: skip
    assert printed(monkeypatch, runs, "ccc").startswith("A  aaa ")


@pytest.mark.parametrize("other", [{"name": "eval.py 1"}, {"user": "bob"}, {"script": "eval.py"}])
def test_another_job_is_not_the_run_before(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    first = recorded("aaa", **({"name": "train.py 1"} | other), at=1.0)  # type: ignore[arg-type]
    found = printed(monkeypatch, [first, recorded("bbb", "train.py 2", at=2.0)], "bbb")
    assert "no run of train.py 2 before bbb" in found


def test_long_values_are_shown_where_they_begin_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ["/opt/a/lib:" * 100 + end for end in ("/opt/nccl-2.27", "/opt/nccl-2.28")]
    runs = [recorded(name, at=at, path=path) for name, at, path in zip("ab", (1.0, 2.0), paths, strict=True)]  # fmt: skip
    found = printed(monkeypatch, runs, "b")
    assert "nccl-2.27" in found
    assert "nccl-2.28" in found
