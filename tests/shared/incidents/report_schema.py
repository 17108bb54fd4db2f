"""The JSON Schema of report.json, made from the structs; the file that ships it lies beside the code that writes reports."""

from pathlib import Path
from typing import Any

import msgspec

from mldebug.core.report_model import REPORT_SCHEMA, Report
from mldebug.incidents import report

SCHEMA_FILE = Path(report.__path__[0]) / "report.schema.json"


def report_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) that every report obeys."""
    schema = msgspec.json.schema(Report)
    definitions = schema["$defs"]
    definitions["Report"]["properties"]["schema"] = {"const": REPORT_SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{REPORT_SCHEMA.replace('/', ':')}",
        "title": "mldebug report",
        **schema,
    }


def schema_text() -> str:
    """The text that the file `report.schema.json` must have."""
    text = msgspec.json.format(msgspec.json.encode(report_schema(), order="sorted"), indent=2)
    return text.decode() + "\n"
