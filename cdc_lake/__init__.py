"""cdc_lake: changes of the PostgreSQL family in Delta Lake and Iceberg, whole transactions, exactly once.

The public names, loaded when they are first used, so that importing the package costs nothing::

    from cdc_lake import load_pipeline, plan, run_once, status, compare, report

    project = load_pipeline("pipelines/shop.yaml", environment="prod")
    print(plan(project).actions)
    run_once(project)

and of bronze, also without Spark::

    from cdc_lake import open_bronze

    bronze = open_bronze("pipelines/shop.yaml")
    print(bronze.changes("public.orders", bronze.span("0/16B3748", "0/16C0000")).to_pandas())

one row's story, in bronze and in what waits::

    from cdc_lake import held, inspect_row

    print(inspect_row("pipelines/shop.yaml", "public.orders", 17).events)

and of silver, all tables as of one moment::

    from cdc_lake import session

    now = session("pipelines/shop.yaml", as_of="latest")
    print(now.position, now.read("orders").to_pandas(), now.read("items").to_pandas())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc_lake.api import (
        advance_slot,
        check,
        compare,
        create_slot,
        cuts,
        discard_held,
        drop_slot,
        end_promise,
        held,
        history,
        inspect_parked,
        inspect_row,
        inspect_slot,
        inspect_transaction,
        load_pipeline,
        maintain,
        open_bronze,
        pause,
        plan,
        promise,
        read,
        rebuild,
        release_held,
        report,
        restart,
        resume,
        resync,
        run,
        run_once,
        session,
        slots,
        status,
        status_page,
        upgrade,
        validate,
    )

__all__ = [
    "advance_slot",
    "check",
    "compare",
    "create_slot",
    "cuts",
    "discard_held",
    "drop_slot",
    "end_promise",
    "held",
    "history",
    "inspect_parked",
    "inspect_row",
    "inspect_slot",
    "inspect_transaction",
    "load_pipeline",
    "maintain",
    "open_bronze",
    "pause",
    "plan",
    "promise",
    "read",
    "rebuild",
    "release_held",
    "report",
    "restart",
    "resume",
    "resync",
    "run",
    "run_once",
    "session",
    "slots",
    "status",
    "status_page",
    "upgrade",
    "validate",
]


def __getattr__(name: str) -> Any:
    """PEP 562: a public name is imported at its first use."""
    if name in __all__:
        from cdc_lake import api  # noqa: PLC0415  # the reason for this function

        return getattr(api, name)
    msg = f"module 'cdc_lake' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """The public names, also those not loaded yet."""
    return sorted({*globals(), *__all__})
