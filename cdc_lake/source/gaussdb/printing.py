"""How parallel decoders print values: as the server and the database are set up, whatever the session or its role asks.

Serial decoding prints as its session asks (seen on openGauss 6.0.2). Floats are exact everywhere: both decoders force
`extra_float_digits`. Under DateStyle ISO a time tells its zone, and silver takes any.
"""

from __future__ import annotations

from cdc_lake.errors import ServerSettings
from cdc_lake.source.printing import PRINTING
from cdc_lake.source.quoting import identifier
from cdc_lake.source.wire.session import WireSession
from cdc_lake.source.wire.target import SETTINGS

_READ_BY = ("DateStyle", "bytea_output")
_COPIED_BY = "IntervalStyle"


def check_printing(bare: WireSession) -> None:
    """Raise ServerSettings where parallel decoders print values that nobody could read.

    `bare` is a session that asks for no settings at its start: it is shown what the decoders go by.
    """
    found = _settings(bare)
    wrong = [name for name in _READ_BY if not found.get(name, PRINTING[name]).startswith(PRINTING[name])]
    if wrong:
        said = ", ".join(f"{name} = {found[name]}" for name in wrong)
        statements = "; ".join(_statement(bare, name) for name in wrong)
        raise ServerSettings(
            f"parallel decoding prints values by the database's settings, and cannot be read with {said}",
            where=bare.place,
            hint=f"run: {statements}; or read with `parallel-decode-num: 1`",
        )


def interval_hint(bare: WireSession) -> tuple[str, str] | None:
    """Where intervals of the stream read otherwise than those of a copy: what is so, and the statement that helps."""
    found, ours = _settings(bare).get(_COPIED_BY), SETTINGS[_COPIED_BY]
    if found in {None, ours}:
        return None
    text = f"parallel decoding prints intervals by the database's {_COPIED_BY} = {found}, the initial copy by {ours}"
    return text, _statement(bare, _COPIED_BY)


def _statement(bare: WireSession, name: str) -> str:
    value = SETTINGS[name]
    return f"ALTER DATABASE {identifier(bare.target.database)} SET {name} = '{value}'"


def _settings(bare: WireSession) -> dict[str, str]:
    names = ", ".join(f"'{name}'" for name in (*_READ_BY, _COPIED_BY))
    sql = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    return {name or "": value or "" for name, value in bare.query(sql, doing="reading how values are printed").rows}
