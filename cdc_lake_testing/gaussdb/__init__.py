"""A test server that speaks the protocol of GaussDB, openGauss or MogDB over real sockets.

`ledger` contains committed transactions and `server` serves them. `shape` decides what a version prints of them,
`encode` how, `stream` when it is sent. SQL is answered through the port in `sql`: by `scripted` and `declared` tables,
or by a live PostgreSQL (`live`, `answers`). `recorded` converts recordings to sources. A client cannot distinguish it
from the servers whose streams were recorded, except for what a module documents as omitted.
"""
