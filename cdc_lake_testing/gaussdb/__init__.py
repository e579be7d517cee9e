"""A server that speaks as GaussDB, openGauss or MogDB, over real sockets.

`ledger` holds what was committed and `server` serves it. What a version prints of it is `shape`'s, how that looks in
bytes `encode`'s, when it is sent `stream`'s. SQL is answered through the port in `sql`: by `scripted` and `declared`
tables, or by a live PostgreSQL (`live`, `answers`). `recorded` turns recordings into sources. Nothing here is a mock: a
client cannot tell it from the servers whose streams were recorded, but for what a module says it leaves out.
"""
