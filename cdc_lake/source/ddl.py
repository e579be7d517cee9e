"""The event trigger that tells, in the stream and at its place, which columns a table has once it was altered.

Its SQL is printed for a superuser and run by nobody else. A message is transactional: it is sent where the transaction
that altered the table stands, and not at all where that was rolled back (`decode.told` reads it).
"""

from __future__ import annotations

from typing import Final

from cdc_lake.model.change import DDL_MESSAGES
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import literal

TRIGGERS: Final = ("cdc_lake_altered", "cdc_lake_dropped")

# DROP TYPE … CASCADE and the like drop columns without altering their table: that is in what was dropped.
_FUNCTION: Final = f"""\
CREATE SCHEMA IF NOT EXISTS cdc_lake;
CREATE OR REPLACE FUNCTION cdc_lake.tell_columns() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $cdc_lake$
DECLARE
  altered oid[];
  told text;
BEGIN
  IF tg_event = 'sql_drop' THEN
    altered := ARRAY(SELECT objid FROM pg_event_trigger_dropped_objects()
                     WHERE classid = 'pg_class'::regclass AND objsubid > 0);
  ELSE
    altered := ARRAY(SELECT objid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass);
  END IF;
  WITH RECURSIVE changed AS (
    SELECT unnest(altered) AS oid
    UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN changed ON changed.oid = i.inhparent
  ), tables AS (
    SELECT c.oid, (
      SELECT json_agg(json_build_object(
        'name', a.attname, 'number', a.attnum, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
        'filled', a.atthasmissing OR a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL
      ) ORDER BY a.attnum) FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS columns
    FROM changed JOIN pg_class AS c ON c.oid = changed.oid
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  )
  SELECT json_build_object('version', 1, 'command', tg_tag, 'tables',
    json_agg(json_build_object('oid', oid::bigint, 'columns', coalesce(columns, '[]'))))::text
  INTO told FROM tables HAVING count(*) > 0;
  IF told IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, {literal(DDL_MESSAGES)}, told);
  END IF;
END $cdc_lake$;
"""


def trigger_sql() -> str:
    """What a superuser runs, once in the database."""
    events = zip(TRIGGERS, ("ddl_command_end", "sql_drop"), strict=True)
    made = (
        f"DROP EVENT TRIGGER IF EXISTS {name};\n"
        f"CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION cdc_lake.tell_columns();"
        for name, event in events
    )
    return _FUNCTION + "\n".join(made)


def tells(session: Session) -> bool:
    """Whether the triggers are there and fire. Raises SourceError."""
    with named("looking for the event trigger"):
        row = session.execute(
            "SELECT count(*) FROM pg_event_trigger WHERE evtname::text = ANY (%s) AND evtenabled IN ('O', 'A')",
            [list(TRIGGERS)],
        ).fetchone()
    return row is not None and int(str(row[0])) == len(TRIGGERS)
