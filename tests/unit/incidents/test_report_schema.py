"""report.json and its JSON Schema."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from mldebug.core.report_model import Report
from shared.incidents import samples
from shared.incidents.report_schema import SCHEMA_FILE, report_schema, schema_text

VALIDATOR = jsonschema.Draft202012Validator(report_schema())


def written(name: str) -> Any:
    return json.loads(msgspec.json.encode(samples.report(samples.ALL[name]())))


def test_the_shipped_schema_is_the_generated_one(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


@pytest.mark.parametrize("name", samples.ALL)
def test_reports_obey_it(name: str) -> None:
    VALIDATOR.validate(written(name))


@pytest.mark.parametrize("name", samples.ALL)
def test_reports_survive_a_round_trip(name: str) -> None:
    report = samples.report(samples.ALL[name]())
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize(
    ("field", "value"),
    [("schema", "other/1"), ("kind", "nonsense"), ("ranks", [{}]), ("stalled_since", 7)],
)
def test_what_is_no_report_does_not(field: str, value: object) -> None:
    document = written("sleeping") | {field: value}
    assert not VALIDATOR.is_valid(document)


def test_a_missing_field_is_noticed() -> None:
    document = written("sleeping")
    del document["diagnosis"]["culprits"]
    assert not VALIDATOR.is_valid(document)
