"""Bundles and jobs, and what monitoring is shown of them: DEP7xx."""

from __future__ import annotations

from cdc_lake.errors.root import CdcLakeError


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"


class NotDeployable(DeployError):
    """A pipeline that would not run as jobs on Databricks, or would carry a secret there."""

    code = "DEP701"
    exit_code = 3


class ServerlessCompute(DeployError):
    """A job would run on serverless compute, which speaks Spark Connect only."""

    code = "DEP703"
    exit_code = 3
    hint = "run it on a classic job cluster: `job_cluster_key`, as `cdc-lake bundle` writes it"


class BundleFieldUnknown(DeployError):
    """A bundle has a key that Databricks does not know."""

    code = "DEP704"
    exit_code = 3
    hint = "correct or remove the key"


class BundleKeyUndefined(DeployError):
    """A bundle refers to something that it does not define."""

    code = "DEP705"
    exit_code = 3
    hint = "define it, or correct the reference"


class ComputeUnclear(DeployError):
    """A task names more than one compute, or none."""

    code = "DEP706"
    exit_code = 3
    hint = "keep one of `job_cluster_key`, `new_cluster`, `existing_cluster_id`"


class SecretInPlain(DeployError):
    """A secret's value stands in a bundle."""

    code = "DEP707"
    exit_code = 3
    hint = "put the value into a secret scope and write `{{secrets/SCOPE/KEY}}`"


class EntryPointMissing(DeployError):
    """A task calls what the wheel does not have, or calls it with other parameters."""

    code = "DEP708"
    exit_code = 3


class RuntimeUnfit(DeployError):
    """A cluster's Spark is not the one that this version runs on."""

    code = "DEP709"
    exit_code = 3
    hint = "use a Databricks Runtime of Spark 4.1: 18.0 or a later one that has it"


class MetricsNotServed(DeployError):
    """The address for metrics cannot be listened at."""

    code = "DEP710"
    hint = (
        "another program listens there, or another receiver: give each pipeline a port of its own in "
        "`observe.metrics`, with an address that this machine has"
    )


class MetricsNotWritten(DeployError):
    """The file for metrics cannot be written. It is told, and tried again; apply goes on."""

    code = "DEP711"
    hint = "make the folder of `observe.textfile`, and let the user that applies write into it"


class JobParametersWrong(DeployError):
    """A job was started with parameters that it does not take."""

    code = "DEP712"
    hint = "parameters are `--pipeline=FILE`, `--environment=NAME` and, for receive and apply, `--once=true`"


class LakeFolderUnfit(DeployError):
    """The folder of the lake cannot do what commits stand on."""

    code = "DEP713"
    hint = (
        "put bronze and the control tables into an object store (`bronze.path`, `lake.control`), or `lake.path` on a "
        "file system with hard links and file locks; every job must have it under the same path"
    )


class TriggerUnfit(DeployError):
    """A job starts in a way that its pipeline cannot be run in."""

    code = "DEP714"
    exit_code = 3


class BundleNotWritten(DeployError):
    """The file of a bundle could not be written, or holds what somebody changed."""

    code = "DEP715"


class LineageNotSent(DeployError):
    """Events of lineage cannot be sent. It is told, and what was not sent is lost; apply goes on."""

    code = "DEP716"
    hint = "look at the server that `observe.openlineage.to` names, or make the folder of its file"
