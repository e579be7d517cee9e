"""A server that speaks as GaussDB, openGauss or MogDB, over real sockets.

`ledger` holds what was committed, `server` serves it, `sql` is the port through which SQL is answered, `scripted` and
`recorded` are two sources of both. Nothing here is a mock: a client cannot tell it from the servers whose streams
were recorded, but for what a module says it leaves out.
"""
