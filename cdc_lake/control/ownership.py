"""Ownership: a silver table belongs to one pipeline, and no other merges into it, replaces it or maintains it.

A table belongs to a pipeline if it was made for a stream that the pipeline's control tables or bronze know; or if it
names the pipeline and was made for an earlier stream from the same slot, as after control tables and bronze were
deleted; or if it was never written and the pipeline's cuts list it, as version 0.3.0 left tables of empty sources.
Any other table is refused with both names, until a run adopts it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import table_states
from cdc_lake.control.streams import check_bronze_there
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.errors import BronzeUnknown, LakeError, OtherSource, SilverNotOwned, SlotForeign
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import StreamIdentity
from cdc_lake.tables.control_schema import StreamRow
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Owner


def adoption(label: str) -> str:
    """The option with which a run adopts a silver table, named as `namespace.table`."""
    return f"adopt {label}"


@dataclass
class Ownership:
    """What one pipeline knows of its own streams. `origin`: returns `StreamIdentity.origin` for the pipeline's slot, if
    there is no stream yet.
    """

    project: Project
    origin: Callable[[], str] | None = None
    _control: ControlTables | None = field(default=None, repr=False)

    @property
    def control(self) -> ControlTables:
        """The pipeline's control tables."""
        self._control = self._control or control_tables(self.project)
        return self._control

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams of this pipeline."""
        state = bronze_reader(self.project).state()
        names = {row.stream for row in self.control.streams()}
        return frozenset(names if state is None else names | {state.stream})

    @cached_property
    def _origins(self) -> frozenset[str]:
        """The origins of the pipeline's streams: server, database, slot."""
        origins = frozenset(filter(None, map(_origin_of, self.streams)))
        return origins if origins or self.origin is None else frozenset({self.origin()})

    def refusal(self, target: Target) -> SilverNotOwned | None:
        """Why the pipeline may not write to a silver table; None if it may, or if the table does not exist."""
        owner = table_log(self.project, target).owner()
        if owner is None or self._is_ours(target, owner):
            return None
        return SilverNotOwned(_words(self.project, target, owner), where=target.label, hint=_hint(self, target, owner))

    def check(self, target: Target) -> None:
        """Raise SilverNotOwned if a table belongs to another pipeline."""
        if (refusal := self.refusal(target)) is not None:
            raise refusal

    def is_listed(self, target: Target) -> bool:
        """Whether the pipeline's last cut lists the table."""
        cut = self.control.last_cut()
        tables = [] if cut is None else table_states(cut.tables).values()
        return any(table.table == target.label and table.version is not None for table in tables)

    def _is_ours(self, target: Target, owner: Owner) -> bool:
        if owner.stream is None:
            return owner.unused or self.is_listed(target)
        if owner.stream in self.streams:  # after a pipeline was renamed with its folders, no other has the stream
            return owner.pipeline in {None, self.project.name} or not _has(self.project, owner.pipeline, owner.stream)
        named = owner.pipeline or _named_by_control(self.project, owner.stream)
        return named in {None, self.project.name} and _origin_of(owner.stream) in self._origins


def check_own_bronze(project: Project, state: StreamCheckpoint | None, control: ControlTables) -> None:
    """Raise BronzeUnknown if bronze has another pipeline's stream, BronzeGone if it has none any more; see
    `check_named_slot`.
    """
    place = bronze_reader(project).place
    check_bronze_there(state, control, place)
    if state is not None:
        check_named_slot(project, state)
    if state is None or any(row.stream == state.stream for row in control.streams()):
        return
    name = _named_by_control(project, state.stream)
    origin = _origin_of(state.stream)
    if name not in {None, project.name}:
        raise BronzeUnknown(f"bronze belongs to pipeline `{name}`, but this is pipeline `{project.name}`", where=place)
    if name is None and origin is not None and not origin.endswith(f":{project.slot}"):
        words = f"bronze belongs to the pipeline of stream {origin}, but this is pipeline `{project.name}`"
        raise BronzeUnknown(f"{words}, with slot `{project.slot}`", where=place)


def check_named_slot(project: Project, state: StreamCheckpoint) -> None:
    """Raise SlotForeign if bronze's stream is not from the pipeline's slot, and another pipeline's is."""
    origin = _origin_of(state.stream)
    if origin is None or origin.endswith(f":{project.slot}") or (other := _pipeline_of_slot(project)) is None:
        return
    hint = (
        f"if the file of pipeline `{other}` was given the name `{project.name}`, give it a name that no pipeline of "
        f"the lake has; if it is the file of `{project.name}`, restore its own slot in `source.slot.name`"
    )
    raise SlotForeign(_of_another(project, other), hint=hint)


def unclaimed_slot(project: Project, bronze: str, state: StreamCheckpoint | None) -> SlotForeign:
    """The error for a slot of the pipeline's name that bronze does not know; `bronze`: bronze's location."""
    if state is not None:
        words = f"slot `{project.slot}` was created after this pipeline was told to start over, but by another program"
        hint = "stop its reader, or set `source.slot.name` to another name; `cdc-lake restart` shows what it would drop"
        return SlotForeign(words, where=bronze, hint=hint)
    if (other := _pipeline_of_slot(project)) is not None:
        hint = "set `source.slot.name` to another name: each pipeline has its own slot"
        return SlotForeign(_of_another(project, other), hint=hint)
    words = (
        f"slot `{project.slot}` exists, but bronze is empty: another pipeline created the slot, or this pipeline's "
        "lake is missing"
    )
    return SlotForeign(words, where=bronze)


def _of_another(project: Project, other: str) -> str:
    return f"slot `{project.slot}` belongs to pipeline `{other}`, but this is pipeline `{project.name}`"


def _pipeline_of_slot(project: Project) -> str | None:
    """The other pipeline of the lake whose newest stream is read from this pipeline's slot."""
    pipelines = (n for n, rows in _controls(project) if n != project.name and rows and rows[-1].slot == project.slot)
    return next(pipelines, None)


def _controls(project: Project) -> Iterator[tuple[str, list[StreamRow]]]:
    """Pipelines with local control tables next to this one's, and their streams."""
    parent = project.control.parent
    if project.control_address is not None or not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if (folder / "streams" / "_delta_log").is_dir():
            with suppress(LakeError):  # newer or damaged: only its name is missing in a message
                yield folder.name, ControlTables(folder).streams()


def check_owned(
    project: Project, names: Iterable[TableName], origin: Callable[[], str], adopt: Container[str] = frozenset()
) -> dict[str, str]:
    """Raise SilverNotOwned if a source table's silver table belongs to another pipeline and is not among `adopt`;
    returns the owners of adopted ones, by label. `origin`: see `Ownership`. Paused tables are not checked.
    """
    ownership = Ownership(project, origin)
    paused = stopped_tables(project, ownership.control)
    targets = [project.target(name) for name in names if str(name) not in paused]
    refused = {target.label: error for target in targets if (error := ownership.refusal(target)) is not None}
    _raise_first([error for label, error in refused.items() if label not in adopt])
    return {label: error.message for label, error in refused.items()}


def _raise_first(refused: Sequence[SilverNotOwned]) -> None:
    if not refused:
        return
    first, more = refused[0], len(refused) - 1
    if not more:
        raise first
    names = ", ".join(error.where for error in refused[1:4]) + (", …" if more > 3 else "")
    count = f"{pluralize(more, 'more table')} {'is' if more == 1 else 'are'}"
    raise SilverNotOwned(f"{first.message}; {count} not its own: {names}", where=first.where, hint=first.remedy)


def _has(project: Project, pipeline: str, stream: str) -> bool:
    """Whether another pipeline of the lake has a stream; assumed if control tables are remote or cannot be read."""
    folder = project.control.with_name(pipeline)
    if project.control_address is not None:
        return True
    if not (folder / "streams" / "_delta_log").is_dir():
        return False
    try:
        return any(row.stream == stream for row in ControlTables(folder).streams())
    except LakeError:
        return True


def _origin_of(stream: str) -> str | None:
    """Server, database and slot of a stream; None if the text is not a stream identity."""
    try:
        return StreamIdentity.parse(stream).origin
    except OtherSource:
        return None


def _named_by_control(project: Project, stream: str) -> str | None:
    """The pipeline of the lake whose control tables know a stream, None without one."""
    return next((n for n, rows in _controls(project) if any(row.stream == stream for row in rows)), None)


def _name_of(project: Project, owner: Owner) -> str | None:
    """The current name of a silver table's pipeline, which may have been renamed with its folders."""
    if owner.stream is None or (owner.pipeline is not None and _has(project, owner.pipeline, owner.stream)):
        return owner.pipeline
    now = _named_by_control(project, owner.stream)
    return now if owner.pipeline is None or now not in {None, project.name} else owner.pipeline


def _words(project: Project, target: Target, owner: Owner) -> str:
    this = f"this is pipeline `{project.name}`"
    if owner.stream is None and owner.pipeline is None:
        return f"{target.label} was not written by cdc_lake, and {this}"
    name = _name_of(project, owner)
    if name is not None and name != project.name:
        return f"{target.label} belongs to pipeline `{name}`, and {this}"
    origin = None if owner.stream is None else _origin_of(owner.stream)
    stream = f"stream {origin or owner.stream}"
    if name is None:
        return f"{target.label} belongs to the pipeline of {stream}, and {this}"
    return f"{target.label} belongs to another pipeline named `{name}`, that of {stream}, and {this} of another source"


def _hint(ownership: Ownership, target: Target, owner: Owner) -> str:
    project = ownership.project
    name = _name_of(project, owner)
    apart = "set another `silver.defaults.namespace` for this pipeline, or give the table another name with `to`"
    is_other = name not in {None, project.name}
    renamed = f"; if this pipeline was renamed, set `pipeline: {name}` again" if is_other else ""
    again, first = f"cdc-lake rebuild {target.source} --adopt", f"cdc-lake run --adopt {target.label}"
    command = again if ownership.is_listed(target) else first
    return f"{apart}{renamed}; to replace the content of the table on purpose: `{command}`"
