"""All generated reference pages by file name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from cdc_lake.config.schema import json_schema
from tools.docs import (
    api,
    command_line,
    decoding_options,
    json_output,
    lake_tables,
    licences,
    monitoring,
    pipeline_file,
    rules,
    silver_types,
)

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "api.md": api.api_page,
    "bronze.md": lake_tables.bronze_page,
    "cli.md": command_line.commands_page,
    "control.md": lake_tables.control_page,
    "decoding-options.md": decoding_options.options_page,
    "errors.md": command_line.errors_page,
    "events.md": monitoring.events_page,
    "exit-codes.md": command_line.exit_codes_page,
    "licences.md": licences.licences_page,
    "metrics.md": monitoring.metrics_page,
    "output.md": json_output.output_page,
    "output.schema.json": lambda: format_schema(json_output.output_schema()),
    "pipeline.md": pipeline_file.pipeline_page,
    "pipeline.schema.json": lambda: format_schema(json_schema()),
    "rules.md": rules.rules_page,
    "types.md": silver_types.types_page,
}
"""A file below `docs/reference`, and the function that makes its text."""


def format_schema(schema: Mapping[str, object]) -> str:
    """A JSON Schema as the text of a file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
