"""All targets by name, and the formats of single changes, which have two decoders."""

from __future__ import annotations

from tests.fuzz import family, files, kept, pgoutput, pipelines, values, wire
from tests.fuzz.target import Form, Target

FORMS: dict[str, Form] = {form.name: form for form in (pgoutput.PgoutputFrames(), *family.FORMS)}
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(form.target for form in FORMS.values()),
        pgoutput.pgoutput_stream(), family.mppdb_stream(), family.line_stream(),
        wire.wire(), *files.targets(), pipelines.pipeline_file(), *values.targets(),
    )
}  # fmt: skip


def samples(target: Target) -> list[bytes]:
    """What its inputs are made from: seeds, and inputs that are kept."""
    return [*dict.fromkeys([*target.seeds(), *kept.read(target.name)])]
