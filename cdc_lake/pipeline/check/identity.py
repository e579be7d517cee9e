"""Replica identity: which old columns the server logs of a row, and what nobody can know because it logs no more."""

from __future__ import annotations

from cdc_lake.model.relation import Relation, ReplicaIdentity

KEY_ONLY = "old values of other columns, and large values that an update leaves alone, are not sent"


def identity_of(relation: Relation, *, published: bool) -> tuple[str, str]:
    """How a row that is changed is told, and what is lost by it; empty where nothing is.

    `published`: changes are sent for a publication, as the plugin pgoutput needs one.
    """
    key = ", ".join(column.name for column in relation.columns if column.key)
    match relation.identity:
        case ReplicaIdentity.FULL:
            return "whole old rows", ""
        case ReplicaIdentity.INDEX if key:
            return f"index ({key})", KEY_ONLY
        case ReplicaIdentity.DEFAULT if key:
            return f"primary key ({key})", KEY_ONLY
        case _ if published:
            return "none", "the server refuses updates and deletes of it once it is published"
        case _:
            return "none", "updates and deletes of it do not say which row they mean"
