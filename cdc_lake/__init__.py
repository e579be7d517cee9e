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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc_lake.api import Pipeline, validate

__all__ = ["Pipeline", "validate"]


def __getattr__(name: str) -> Any:
    """PEP 562: a public name is imported at its first use."""
    if name in __all__:
        return getattr(importlib.import_module("cdc_lake.api"), name)
    msg = f"module 'cdc_lake' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """The public names, also those not loaded yet."""
    return sorted({*globals(), *__all__})
