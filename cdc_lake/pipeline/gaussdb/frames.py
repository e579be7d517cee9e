"""The frames of a slot of the GaussDB family, and what assembles them, as the pipeline's options say."""

from __future__ import annotations

from collections.abc import Callable

from cdc_lake.config.gaussdb_options import Mode, as_number
from cdc_lake.config.gaussdb_sent import effective_options
from cdc_lake.config.project import Project
from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.mppdb.assembler import FamilyAssembler
from cdc_lake.decode.mppdb.captured import Captured
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.plain import read_record
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Row, Style, Truncated
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.stream.encoding import codec_by_name
from cdc_lake.pipeline.stream.policy import lands
from cdc_lake.source.gaussdb.polling import FamilyFunctions
from cdc_lake.source.gaussdb.stream import GaussStream
from cdc_lake.source.polling import PollingStream
from cdc_lake.source.stream import FrameSource
from cdc_lake.source.wire.session import WireSession

STANDBY_ONLY = "standby-connection"
"""The option by which a primary refuses to decode: not sent where the primary is read."""

Dial = Callable[[str, bool], WireSession]
"""Opens a session: what for, and whether for replication."""


def style_of(project: Project) -> tuple[Style, bool]:
    """How the stream is written: its style, and whether in batches."""
    source = project.family
    if source.decoding_mode is not Mode.PARALLEL:
        return Style.SERIAL, False
    options = effective_options(source)
    return Style(options["decode-style"][0]), as_number(options["sending-batch"]) == 1


def codec_of(project: Project, encoding: str) -> Codec:
    """The codec of what is read, with the pipeline's policy. Raises UnknownEncoding.

    A stream is in the database's encoding; what SQL functions answer, the server has made UTF-8 of.
    """
    return codec_by_name(project, "UTF8" if reads_by_sql(project) else encoding)


def assembler_of(
    project: Project,
    domain: OrderDomain,
    encoding: str,
    note: Callable[[str], None] = lambda _: None,
    *,
    frames: NewFrames | None = None,
    captured: Captured | None = None,
) -> FamilyAssembler:
    """What makes transactions of the stream's frames; `note` is told once of each kind of line that is left out.

    `frames` makes stores for large ones; None: all are held in memory. `captured` leaves rows out; None: none.
    """
    style, batch = style_of(project)
    by_csn = project.family.slot_order == "csn"
    codec = codec_of(project, encoding)
    return FamilyAssembler(
        style,
        batch=batch,
        domain=domain,
        codec=codec,
        confirms_csn=by_csn,
        keeps=lands(project),
        note=note,
        frames=frames,
        captured=captured,
    )


def tables_of(raw: RecordTransaction, layouts: Layouts) -> frozenset[TableName]:
    """The tables that a transaction changes. Raises DecodeError."""
    found: set[TableName] = set()
    for record in raw.records:
        match read_record(raw.style, record, layouts):
            case Row(table=table):
                found.add(table)
            case Truncated(tables=tables):
                found.update(tables)
            case _:
                pass
    return frozenset(found)


def sends_more(project: Project) -> bool:
    """Whether the server lets rows through that the pipeline does not take: the white list cannot say its patterns."""
    patterns = project.family.tables
    listed = effective_options(project.family).get("white-table-list")
    everything = (listed or "*.*").split(",")
    return set(everything) != set(patterns)


def frames_of(
    project: Project, session: WireSession, start: int, *, on_standby: bool = False, looks: bool = False
) -> FrameSource:
    """Start to read the pipeline's slot after `start`, 0 for the slot's own position. Raises SourceError.

    `session` is a replication connection, in `mode: polling` an ordinary one; it is closed with the frames.
    `on_standby`: it is one to a standby, where the pipeline wants that; otherwise one to the primary. `looks`: nothing
    is confirmed before what lies behind `start` was looked at.
    """
    source = project.family
    options = effective_options(source)
    if not on_standby:
        options.pop(STANDBY_ONLY, None)
    if source.mode == "polling":
        interval, most = source.polling.interval / 1000, source.polling.max_changes
        functions = FamilyFunctions(session, project.slot, options)
        return PollingStream(functions, start, interval=interval, max_changes=most, looks=looks)
    serial = source.decoding_mode is Mode.SERIAL
    return GaussStream(
        session,
        project.slot,
        start,
        options,
        keepalives_confirm=serial and source.slot_order == "lsn",
        status_interval=source.reply_interval / 1000,
        silence=source.silence_timeout / 1000,
    )


def reads_by_sql(project: Project) -> bool:
    """Whether the slot is read by SQL functions, for which no replication connection is needed."""
    return project.family.mode == "polling"
