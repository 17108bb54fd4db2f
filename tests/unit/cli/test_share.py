"""`mldebug share`: one file of a report, and what is in it after redaction."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from mldebug.cli.commands.share import redacted
from mldebug.cli.main import main
from mldebug.core.report_model import SourceView
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report_store import ReportStore
from shared.incidents import samples

SOURCE = SourceView(path="/home/ada/train.py", line=7, first=7, lines=("secret_recipe()",))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose state dir has one report."""
    made = samples.report(samples.sleeping())
    ranks = tuple(replace(one, source=SOURCE if one.culprit else None) for one in made.ranks)
    made = replace(made, ranks=ranks)
    ReportStore(tmp_path / "state").save(made, render_html(made), {})
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path / 'state'}}}\n")
    return file


def shared(config: Path, out: Path, *words: str) -> str:
    assert main(["share", "--out", str(out), *words, "--config", str(config)]) == 0
    return out.read_text()


def test_it_is_one_file_with_all_of_the_report(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    text = shared(config, tmp_path / "r.html", "2026")
    assert "secret_recipe()" in text
    assert "gpu-17" in text
    assert "src=" not in text
    assert "nothing was sent anywhere" in capsys.readouterr().out


def test_redacted_it_has_neither_names_nor_sources(config: Path, tmp_path: Path) -> None:
    text = shared(config, tmp_path / "r.html", "--redact")
    assert "slow_data_loader" in text  # it still says what happened
    for name in ("gpu-17", "ada", "secret_recipe", "/home/ada"):
        assert name not in text.replace("data", "").replace("Data", "").replace("readable", ""), (
            name
        )


def test_a_redacted_report_is_a_report() -> None:
    for make in samples.ALL.values():
        made = samples.report(make())
        assert [one.rank for one in redacted(made).ranks] == [one.rank for one in made.ranks]


def test_a_file_that_is_there_is_kept(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    out = tmp_path / "r.html"
    out.write_text("mine")
    assert main(["share", "--out", str(out), "--config", str(config)]) == 2
    assert "overwrite it with --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert "secret_recipe" in shared(config, out, "--force")
