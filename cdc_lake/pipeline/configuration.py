"""The configuration of a pipeline, numbered: which tables it takes, what becomes of their values, how text is read.

It decides what bronze holds of a transaction, so each COMMIT row has its number. Any other configuration than the last
one gets the next number, in the control table `configurations`, before anything is landed under it. The key of hashes
is part of it by a fingerprint only: a hash under that key, which does not tell it.
"""

from __future__ import annotations

import hashlib
import json

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.decode.redaction import Hasher
from cdc_lake.lake.control import ConfigurationRow, ControlTables, now
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.redaction import check_columns
from cdc_lake.pipeline.source_view import source_view

_LABEL = b"cdc_lake key of redaction"


def settings_of(project: Project) -> str:
    """What decides, as canonical JSON; nothing in it is secret."""
    bronze, source = project.pipeline.bronze, project.pipeline.source
    key = bronze.redact_key
    used = key is not None and any(rule.strategy == "sha256" for rule in bronze.redact)
    told = {
        "tables": list(source.tables),
        "encoding": source.model_dump(include={"encoding_errors", "hex_columns"}, exclude_defaults=True),
        "redact": sorted([column, rule.strategy] for rule in bronze.redact for column in rule.columns),
        "key": Hasher(key.get_secret_value().encode()).text(_LABEL) if key is not None and used else None,
    }
    return json.dumps(told, sort_keys=True, ensure_ascii=False)


def redacted_columns(project: Project) -> int:
    """How many columns of the captured tables are redacted, as they are now. Raises RedactionUnfit, SourceError."""
    with source_view(project) as source:
        found = [layout for table in source.tables() if (layout := source.layout(table)) is not None]
    return check_columns(project, found)


def number_configuration(project: Project, state: BronzeState | None, control: ControlTables, tell: Tell) -> int:
    """The number of the pipeline's configuration, recorded where it is a new one.

    A new one is held against the source's tables first. Raises ConfigError where it does not fit them, SourceError,
    ControlNotWritten.
    """
    settings = settings_of(project)
    fingerprint = hashlib.sha256(settings.encode()).hexdigest()
    last = control.last_configuration()
    if last is not None and last.fingerprint == fingerprint:
        return last.number
    redacts = bool(project.pipeline.bronze.redact)
    if redacts:
        columns = redacted_columns(project)
        tell(Progress("connect", f"columns that are redacted: {columns}", facts={"columns": columns}))
    # what was landed before configurations were recorded has the number 1, and nothing of it was redacted
    unnumbered = int(last is None and state is not None and redacts)
    number = 1 + (last.number if last is not None else unnumbered)
    epoch, position = (0, None) if state is None else (state.epoch, state.upto)
    control.record(ConfigurationRow(number, fingerprint, settings, epoch, position, now()))
    if number > 1:
        what = "transactions landed from now on are of another configuration"
        tell(Progress("connect", f"configuration {number}: {what}", facts={"configuration": number}))
    return number
