"""A draft of an Iceberg table: its next content, with other columns if need be, published in one commit.

A branch has the columns of its table, and Iceberg's own REPLACE TABLE takes the place of whatever was committed
meanwhile. So a second entry of the catalog is made at the table's own metadata. What is replaced and written there is
seen by nobody else; publishing commits the schema, layout and version it came to to the table itself, on the condition
that its newest version is still the one the draft was made for. Old versions, tags and branches stay.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SilverMissing, TableChangedMeanwhile
from cdc_lake.lake.catalog import catalog_address, open_catalog, reaching

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

_AHEAD = 1_000
"""By how much the version's sequence number is above the table's last one: branches of rivals count up too, and a
catalog that has both must find ours the greatest."""


class Draft:
    """A draft of the table of `target`; leaving drops the entry and none of its files."""

    def __init__(self, project: Project, target: Target) -> None:
        self._target = target
        self._address = catalog_address(project)
        self._catalog = open_catalog(self._address)
        self.name = f"{target.name}__cdc_lake_draft"

    def __enter__(self) -> Self:
        with reaching(self._address):
            self._drop()  # what a killed process left
            self._base = self._live()
            self._catalog.register_table(self._entry, self._base.metadata_location)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with reaching(self._address):
            self._drop()

    @property
    def _entry(self) -> tuple[str, str]:
        return self._target.namespace, self.name

    def publish(self, base: int | None) -> None:
        """Make the draft's newest version the table's, where that is still `base`. Raises TableChangedMeanwhile."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra
        from pyiceberg.table import update as u  # noqa: PLC0415 - an extra

        with reaching(self._address):
            draft, live = self._catalog.load_table(self._entry).metadata, self._base.metadata
            requirements: tuple[u.TableRequirement, ...] = (
                u.AssertTableUUID(uuid=live.table_uuid),
                u.AssertRefSnapshotId(ref="main", snapshot_id=base),
                u.AssertCurrentSchemaId(current_schema_id=live.current_schema_id),
                u.AssertLastAssignedFieldId(last_assigned_field_id=live.last_column_id),
            )
            try:
                self._catalog.commit_table(self._base, requirements, _updates(live, draft))
            except (CommitFailedException, ValueError) as cause:
                raise TableChangedMeanwhile(f"another writer committed to {self._target.label}") from cause

    def _live(self) -> Table:
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        try:
            return self._catalog.load_table((self._target.namespace, self._target.name))
        except NoSuchTableError as cause:
            raise SilverMissing(self._target.label) from cause

    def _drop(self) -> None:
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        try:
            self._catalog.drop_table(self._entry)
        except NoSuchTableError:
            return


def _updates(live: TableMetadata, draft: TableMetadata) -> tuple[TableUpdate, ...]:
    """What turns the metadata of the table into that of its draft."""
    from pyiceberg.table import update as u  # noqa: PLC0415 - an extra

    version = draft.current_snapshot()
    assert version is not None, "the draft was written"
    schemas = {schema.schema_id for schema in live.schemas}
    specs = {spec.spec_id for spec in live.partition_specs}
    orders = {order.order_id for order in live.sort_orders}
    changed = {key: value for key, value in draft.properties.items() if live.properties.get(key) != value}
    placed = version.model_copy(update={"sequence_number": live.last_sequence_number + _AHEAD})
    return (
        *(u.AddSchemaUpdate(schema=schema) for schema in draft.schemas if schema.schema_id not in schemas),
        u.SetCurrentSchemaUpdate(schema_id=draft.current_schema_id),
        *(u.AddPartitionSpecUpdate(spec=spec) for spec in draft.partition_specs if spec.spec_id not in specs),
        u.SetDefaultSpecUpdate(spec_id=draft.default_spec_id),
        *(u.AddSortOrderUpdate(sort_order=order) for order in draft.sort_orders if order.order_id not in orders),
        u.SetDefaultSortOrderUpdate(sort_order_id=draft.default_sort_order_id),
        *((u.SetPropertiesUpdate(updates=changed),) if changed else ()),
        u.AddSnapshotUpdate(snapshot=placed),
        u.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=version.snapshot_id),
    )
