"""The doctor's look at the tables of a server of the GaussDB family: which, readable, identified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, NoReplicaIdentity
from cdc_lake.lake.control import control_tables
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.check.line import CheckLine, failed, listed
from cdc_lake.pipeline.check.table_changes import table_change_lines
from cdc_lake.pipeline.gaussdb.facts import FamilyRole, captured, catalog
from cdc_lake.pipeline.gaussdb.facts import tables as facts_of_tables
from cdc_lake.pipeline.gaussdb.tables import copies_have_a_place, family_changes
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.source.gaussdb.catalog import check_identities
from cdc_lake.source.quoting import identifier, quoted
from cdc_lake.source.wire.session import WireSession


def tables(project: Project, session: WireSession, rights: FamilyRole) -> Iterator[CheckLine]:
    """Which tables the patterns choose, what the role may read, what says which row a change means."""
    try:
        names = captured(project, session)
    except CdcLakeError as error:
        yield failed("tables", error)
        return
    facts = facts_of_tables(session, names)
    unreadable = [f.table for f in facts if not f.readable]
    if unreadable:
        fix = "\n".join(grants(unreadable, rights.name))
        text = f"no right to read {listed(unreadable)}"
        yield CheckLine(ok=False, subject="tables", text=text, fix=fix, code="SRC224")
    owned = {f.table for f in facts if f.owned}
    for name in _bare(project, session, names):
        who = "" if name in owned else "its owner runs: "
        fix = f"add a primary key, or {who}{_full(name)}"
        text = f"{name} has no primary key and no replica identity"
        yield CheckLine(ok=False, subject="identity", text=text, fix=fix, code=NoReplicaIdentity.code)
    known = [f.rows for f in facts if f.rows is not None]
    rows = f"about {counted(sum(known), 'row')}" if len(known) == len(facts) else "rows not counted yet by the server"
    yield CheckLine(ok=True, subject="tables", text=f"{len(names)}: {listed(names)}; {rows}")


def came_and_gone(project: Project, session: WireSession) -> Iterator[CheckLine]:
    """What the next start does about tables that came to `source.tables` or went. Raises SourceError, LakeError."""
    state, control = bronze_reader(project).state(), control_tables(project)
    if not is_complete(state, control):
        return
    found = family_changes(project, session, state, control)
    yield from table_change_lines(project, found, publishes=False, placed=copies_have_a_place(state))


def grants(names: Sequence[TableName], role: str) -> list[str]:
    """SQL that lets a role read tables."""
    user, schemas = identifier(role), sorted({t.schema for t in names})
    return [
        *(f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {user};" for schema in schemas),
        *(f"GRANT SELECT ON {quoted(name)} TO {user};" for name in names),
    ]


def identities(project: Project, session: WireSession, names: Sequence[TableName]) -> list[str]:
    """SQL, to choose from, for the tables whose changes would not say which row they mean. Raises SourceError."""
    return [f"{_full(name)}  -- or add a primary key" for name in _bare(project, session, names)]


def _bare(project: Project, session: WireSession, names: Sequence[TableName]) -> Iterator[TableName]:
    for name, facts in catalog(project, session, names).items():
        try:
            check_identities({name: facts}, session.place)
        except NoReplicaIdentity:
            yield name


def _full(name: TableName) -> str:
    return f"ALTER TABLE {quoted(name)} REPLICA IDENTITY FULL;"
