"""How the value of `${secret:scope/key}` reaches a job: by an environment variable of its cluster.

Databricks puts the secret into the variable when the cluster starts; the bundle names it, the job looks it up.
"""

from __future__ import annotations

import os

from cdc_lake.errors import JobParametersWrong

PREFIX = "CDC_LAKE_SECRET_"


def variable(scope: str, key: str) -> str:
    """The environment variable of a secret: letters and digits as they are, anything else by its code."""
    return PREFIX + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):X}_" for c in f"{scope}/{key}")


def from_cluster(scope: str, key: str) -> str:
    """The secret's value in a job. Raises JobParametersWrong where the cluster was not given it."""
    name = variable(scope, key)
    if name not in os.environ:
        hint = "the pipeline file is newer than the bundle: run `cdc-lake bundle` again, then deploy it"
        raise JobParametersWrong(f"the cluster was not given the secret `{scope}/{key}`", where=name, hint=hint)
    return os.environ[name]
