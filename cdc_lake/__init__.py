"""cdc_lake: changes of the PostgreSQL family in Delta Lake and Iceberg, whole transactions, exactly once.

The public names, loaded when they are first used, so that importing the package costs nothing::

    from cdc_lake import Pipeline

    shop = Pipeline.load("pipelines/shop.yaml", environment="prod")
    print(shop.plan().actions)
    shop.run_once()

bronze, also without Spark::

    bronze = shop.bronze()
    print(bronze.changes("public.orders", bronze.span("0/16B3748", "0/16C0000")).to_pandas())

one row's story, in bronze and in quarantine::

    print(shop.inspect_row("public.orders", 17).events)

and silver, all tables as of one moment::

    now = shop.cut("latest")
    print(now.position, now.read("orders").to_pandas(), now.read("items").to_pandas())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cdc_lake.api import Pipeline, validate

__all__ = ["Pipeline", "validate"]

METHODS: Final = {
    "advance_slot": "advance_slot", "check": "check", "compare": "compare", "create_slot": "create_slot",
    "cuts": "cuts", "discard_held": "discard_quarantined", "drop_slot": "drop_slot", "end_promise": "unpin_cut",
    "held": "quarantine", "history": "history", "inspect_parked": "prepared_transactions",
    "inspect_row": "inspect_row", "inspect_slot": "inspect_slot", "inspect_transaction": "inspect_transaction",
    "maintain": "maintain", "open_bronze": "bronze", "pause": "pause", "plan": "plan", "promise": "pin_cut",
    "read": "read", "rebuild": "rebuild", "release_held": "release_quarantined", "report": "write_report",
    "restart": "restart", "resume": "resume", "resync": "resync", "run": "run", "run_once": "run_once",
    "session": "cut", "slots": "slots", "status": "status", "status_page": "write_status_page", "upgrade": "upgrade",
}  # fmt: skip
"""Function of 0.3, whose first argument is the project or a pipeline file → the method that takes its place."""


def __getattr__(name: str) -> Any:
    """PEP 562: a public name is imported at its first use; functions of 0.3 are made of the methods."""
    if name in {*__all__, "load_pipeline"}:
        return getattr(importlib.import_module("cdc_lake.api"), name)
    if name in METHODS:
        return importlib.import_module("cdc_lake.api").function_of(name)
    msg = f"module 'cdc_lake' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """The public names, also those not loaded yet."""
    return sorted({*globals(), *__all__})
