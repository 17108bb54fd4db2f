"""No damage to evidence is an internal error, or takes long: what people post is cut, doubled, mixed and misnamed.

A red test names the seed and the number of the input: `PYTHONPATH=tests python -m unit.diagnosis.test_mutated_evidence SEED NUMBER FOLDER` makes it anew.
"""

import json
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mldebug.capture.flight_recorder.analysis import analyse
from mldebug.capture.flight_recorder.files.folder import read_folder
from mldebug.cli.commands import diagnose
from mldebug.core.errors import MldebugError
from mldebug.core.plugins import NoOptions
from shared.diagnosis.mutations import Mutator, emptied

SEEDS = range(16)
INPUTS = 60  # of a seed
NIGHTLY_SEEDS = range(1000, 1020)
NIGHTLY_INPUTS = 900
LONGEST = 5.0  # seconds of CPU; none of 18,000 took 2
WAYS: tuple[tuple[str, ...], ...] = ((), ("--json",), ("--html", "out.html"))


def judged(case: Path, folder: Path, way: tuple[str, ...]) -> None:
    """As `mldebug diagnose FOLDER` and `mldebug flight-recorder FOLDER` do; to refuse the input is right, any other error is not."""
    try:
        if case.parent.name == "flight":
            found = read_folder(folder)
            analyse(found.records, found.unreadable)
        if case.parent.name != "flight" or way:
            _diagnosed(folder, way)
    except (MldebugError, click.ClickException, click.exceptions.Exit):
        pass


def _diagnosed(folder: Path, way: tuple[str, ...]) -> None:
    place = str(folder.with_suffix(".html"))
    options = [place if one == "out.html" else one for one in way]
    done = CliRunner().invoke(diagnose.create(NoOptions()), [str(folder), *options], standalone_mode=False)  # fmt: skip
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if way == ("--json",) and done.stdout:
        assert isinstance(json.loads(done.stdout), dict)


def faults(seed: int, inputs: int, folder: Path) -> list[str]:
    """What went wrong with the inputs of this seed."""
    mutator, found = Mutator(seed), []
    for number in range(inputs):
        case = mutator.make(emptied(folder / "input"))
        way = mutator.random.choice(WAYS)
        start = time.process_time()
        try:
            judged(case, folder / "input", way)
        except Exception as error:  # noqa: BLE001 - each is what this test looks for
            found.append(f"seed {seed} input {number} ({case.name}): {error!r}")
        if (took := time.process_time() - start) > LONGEST:
            found.append(f"seed {seed} input {number} ({case.name}): {took:.1f} s")
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_evidence_is_no_internal_error(seed: int, tmp_path: Path) -> None:
    assert faults(seed, INPUTS, tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", NIGHTLY_SEEDS)
def test_much_damaged_evidence_is_no_internal_error(seed: int, tmp_path: Path) -> None:
    assert faults(seed, NIGHTLY_INPUTS, tmp_path) == []


def test_an_internal_error_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(folder: Path) -> None:
        raise KeyError(folder.name)

    monkeypatch.setattr(diagnose, "read_evidence", failing)
    assert "KeyError" in faults(0, 8, tmp_path)[0]


def test_a_seed_damages_alike_each_time(tmp_path: Path) -> None:
    def all_of(folder: Path) -> list[bytes]:
        mutator = Mutator(7)
        for number in range(5):
            mutator.make(emptied(folder / str(number)))
        return [one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()]

    assert all_of(tmp_path / "a") == all_of(tmp_path / "b")


if __name__ == "__main__":
    again = Mutator(int(sys.argv[1]))
    for _ in range(int(sys.argv[2]) + 1):
        again.make(emptied(Path(sys.argv[3])))
        again.random.choice(WAYS)
