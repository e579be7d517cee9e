"""The configuration of a pipeline, numbered: which tables it takes, what becomes of their values, how text is read.

It decides what bronze holds of a transaction, so each COMMIT row has its number. Any other configuration than the last
one gets the next number, in the control table `configurations`, before anything is landed under it. The key of hashes
is part of it by a fingerprint only: a hash under that key, which does not tell it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.decode.redaction import Hasher
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import ConfigurationRow, now
from cdc_lake.model.relation import Relation
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.stream.redaction import check_columns
from cdc_lake.pipeline.stream.redaction_change import NOTHING, changed_columns

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
    last = next(reversed(control.configurations()), None)
    if last is not None and last.fingerprint == fingerprint:
        return last.number
    redacts = bool(project.pipeline.bronze.redact)
    if redacts:
        columns = redacted_columns(project)
        tell(Progress("connect", f"columns that are redacted: {columns}", facts={"columns": columns}))
    # what was landed before configurations were recorded has the number 1, and nothing of it was redacted
    number = 1 + (last.number if last is not None else int(state is not None and redacts))
    before = json.loads(last.settings) if last is not None else NOTHING
    changed = changed_columns(before, json.loads(settings), lambda: _held(project, state))
    epoch, position = (0, None) if state is None else (state.epoch, state.upto)
    control.record(ConfigurationRow(number, fingerprint, settings, json.dumps(changed), epoch, position, now()))
    if number > 1:
        words = f"; redacted otherwise from now on: {', '.join(changed)}" if changed else ""
        text = f"configuration {number} begins{words}"
        tell(Progress("connect", text, facts={"configuration": number, "changed": changed}))
    return number


def _held(project: Project, state: BronzeState | None) -> Iterable[Relation]:
    """All layouts that bronze holds."""
    return () if state is None else bronze_reader(project).layouts().values()
