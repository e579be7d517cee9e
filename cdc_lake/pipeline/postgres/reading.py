"""How the stream of a PostgreSQL is read, by the plugin of its slot: what it is asked for, and who decodes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.config.project import Project
from cdc_lake.decode.announced import Landed, TableFacts
from cdc_lake.decode.assembler import Assembler
from cdc_lake.decode.binary import reader_of
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.hashing import Hashing
from cdc_lake.decode.kept import PgoutputFormat
from cdc_lake.decode.mppdb.columnar import tabulate as tabulate_lines
from cdc_lake.decode.mppdb.kept import FamilyFormat
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.parking import Parking
from cdc_lake.decode.test_decoding.assembler import LineAssembler
from cdc_lake.decode.told import Told
from cdc_lake.errors import PublicationAltered
from cdc_lake.lake.control import control_tables
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres.captured import by_publication, carried, wanted
from cdc_lake.pipeline.state.copies import Course, courses
from cdc_lake.pipeline.state.memberships import Member, named_tables
from cdc_lake.pipeline.stream.encoding import codec_by_name, in_hex
from cdc_lake.pipeline.stream.policy import by_policy, lands
from cdc_lake.source.catalog import SourceCatalog, relation_of
from cdc_lake.source.connection import Session, command, encoding_of
from cdc_lake.source.decoded_tables import RowTables, takes
from cdc_lake.source.pgoutput_options import chosen
from cdc_lake.source.plugins import LINE_OPTIONS, PHASED_LINE_OPTIONS, message_options
from cdc_lake.source.product import Product
from cdc_lake.source.publication import member_of, publication_exists
from cdc_lake.source.stream import TransactionAssembler
from cdc_lake.source.unsent import Changed, by_lines, by_messages


@dataclass(frozen=True, slots=True)
class Reading:
    """Who makes transactions and columns; `again`: of what comes again."""

    assembler: TransactionAssembler
    tabulate: Tabulate
    again: Tabulate


def plugin_options(project: Project) -> Mapping[str, str]:
    """What the slot's plugin is asked for, in any case: enough to see which transactions there are."""
    return message_options(project.publication) if by_publication(project) else LINE_OPTIONS


def phased(project: Project) -> bool:
    """Whether the slot has to be made with two-phase decoding: pgoutput turns it on by reading."""
    return not by_publication(project) and project.postgres.decoding.two_phase


def stream_options(project: Project, server: Product) -> Mapping[str, str]:
    """The same for the stream of a server, by whichever way it is read. Raises OptionRefused."""
    if not by_publication(project):
        return PHASED_LINE_OPTIONS if phased(project) else LINE_OPTIONS
    source = project.postgres
    more = chosen(server.major, source.decoding, str(server), streams=source.streams)
    return {**plugin_options(project), **more}


def changed_whole(project: Project, server: Product, session: Session) -> Changed:
    """How functions of a slot that gives whole transactions tell which changed what is captured."""
    if not by_publication(project):
        return by_lines(takes(session, project.postgres.tables))
    asked = project.postgres.decoding.model_copy(update={"proto_version": 1, "two_phase": False})
    return by_messages({**plugin_options(project), **chosen(server.major, asked, str(server), streams=False)})


def check_binary(project: Project, session: Session) -> None:
    """Raise UnreadBinary where values are to come in binary, and a captured column's type is not read so."""
    if not (by_publication(project) and project.postgres.decoding.binary):
        return
    tables: dict[TableName, tuple[str, ...] | None]
    if publication_exists(session, project.publication):
        tables = {one.table: one.columns for one in carried(project, session)}
    else:
        tables = dict.fromkeys(wanted(project, session))
    for table, columns in tables.items():
        for column in relation_of(session, table, columns).columns:
            reader_of(table, column)


def reading_of(
    project: Project,
    session: Session,
    layouts: Callable[[], Session],
    state: BronzeState,
    tell: Tell,
    frames: NewFrames,
    hashing: Hashing,
    parking: Parking | None = None,
    members: Mapping[str, Member] = MappingProxyType({}),
) -> Reading:
    """How the pipeline's stream is read. `session` answers for relations; `layouts` opens another one for lines.

    `frames` makes stores for large transactions. `parking` keeps prepared ones, where the stream has them before their
    end. `hashing` makes digests of large chunks. `members`: see `pipeline.state.memberships`.
    """
    if by_publication(project):
        asked = project.postgres.decoding.messages
        assembler = Assembler(
            WatchedCatalog(session, project.publication, members, partial(_course, project, state.stream)),
            keeps=lands(project),
            # redaction leaves every message out, and of one outside of transactions nothing would be left
            messages=asked and not project.pipeline.bronze.redact,
            told=Told(bronze_reader(project).latest_layouts(state.epoch), partial(_warn, tell)) if asked else None,
            frames=frames,
            parking=parking,
            landed=state.upto,
            layouts=_landed_layouts(project, state),
        )
        decoded = PgoutputFormat(partial(tabulate, in_hex=in_hex(project), hashing=hashing))
        columns = by_policy(project, decoded, tell)
        return Reading(assembler, columns, columns)
    return _of_lines(project, layouts(), state, tell, frames, hashing, parking, named_tables(members))


def _course(project: Project, stream: str, table: str) -> Course | None:
    return courses(control_tables(project).snapshots(), stream).get(table)


def _landed_layouts(project: Project, state: BronzeState) -> Landed:
    """The layout of a table that landed last: of those of the newest files, else of whichever file has one."""
    reader = bronze_reader(project)
    recent = {one.oid: one for one in reader.latest_layouts(state.epoch) if one.oid is not None}

    def landed(oid: int, table: TableName) -> Relation | None:
        return recent.get(oid) or reader.last_layout(state.epoch, table)

    return landed


def _warn(tell: Tell, text: str) -> None:
    tell(Progress("warning", text))


def _of_lines(
    project: Project,
    session: Session,
    state: BronzeState,
    tell: Tell,
    frames: NewFrames,
    hashing: Hashing,
    parking: Parking | None,
    members: Mapping[TableName, tuple[int, str]],
) -> Reading:
    """Lines name tables, columns and types themselves; what they do not say, the catalog is asked for."""
    print_whole_names(session)
    codec = codec_by_name(project, _encoding(project, session))
    taken = takes(session, project.postgres.tables)
    known = bronze_reader(project).latest_layouts(state.epoch)

    def made() -> Layouts:
        catalog = RowTables(session)
        return Layouts(
            catalog, codec, known=known, takes=taken, takes_back=False, versions=catalog.versions, members=members
        )

    again, columns = made(), partial(tabulate_lines, hashing=hashing)
    return Reading(
        LineAssembler(codec, taken, keeps=lands(project), frames=frames, parking=parking, landed=state.upto),
        by_policy(project, FamilyFormat(made(), project.postgres.slot.plugin, columns), tell),
        lambda batch: tabulate_lines(batch, again),
    )


def _encoding(project: Project, session: Session) -> str:
    """Of lines: the database's in a stream; what SQL functions answer, the server has made UTF-8 of, where it can."""
    stored = encoding_of(session)
    return "UTF8" if project.postgres.mode == "polling" and stored != "SQL_ASCII" else stored


def print_whole_names(session: Session) -> None:
    """Have the server print types with their schema, in lines as in the catalog: nothing is on the search path."""
    command(session.pgconn, "SET search_path TO ''", "leaving the search path empty")


class WatchedCatalog:
    """A catalog that looks, whenever a table is announced, whether it is the one that the stream was read from before.

    PostgreSQL announces a table again with its first change after its publication was altered.
    """

    def __init__(
        self, session: Session, publication: str, known: Mapping[str, Member], course: Callable[[str], Course | None]
    ) -> None:
        self._catalog = SourceCatalog(session)
        self._session = session
        self._publication = publication
        self._known = known
        self._course = course
        self._names = {one.oid: name for name, one in known.items() if one.oid is not None}

    def __call__(self, oid: int, table: TableName) -> TableFacts:
        """As `SourceCatalog`; raises PublicationAltered."""
        known, name = self._known.get(str(table)), self._names.get(oid)
        if known is not None or name is not None:
            self._check(oid, table, known)
        facts = self._catalog(oid, table)
        if name not in {None, str(table)} and (course := self._course(str(name))) is not None and not course.waits:
            facts = replace(facts, member=(TableName.parse(str(name)), course.stretches[-1].begins))
        root = facts.published_as
        if root is not None and (str(table) in self._known or str(root.table) not in self._known):
            return replace(facts, published_as=None)
        return facts

    def _check(self, oid: int, table: TableName, known: Member | None) -> None:
        # where table or publication is gone, nothing is read on in another way: the stream itself says what follows
        there = member_of(self._session, self._publication, oid)
        if there is None:
            return
        now, entry = there
        name = self._names.get(oid)
        if now != table and (name is None or name in {str(table), str(now)}):
            return  # what comes was decoded from before the table was renamed, or while it had another name
        if now != table or known is None:
            text = f"table {name} was renamed to {now}"
        elif known.oid not in {None, oid}:
            text = f"{table} is another table than before: it was renamed or made anew"
        elif entry != known.entry:
            text = f"publication `{self._publication}` was altered: it has table {table} in another way than before"
        else:
            return
        raise PublicationAltered(text)
