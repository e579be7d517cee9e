"""Both loops, and all that looks at them. A room imports only from those below it (`pyproject.toml`, import-linter):

run, plan, resync, restart, maintain, upgrade    what the verbs of these names do; below them slots
compare    silver proven equal to its source       check      the doctor: is everything ready?
status     where a pipeline stands, its report     inspect    bronze, rows, payloads and recordings looked at
receiving  loop 1: from the slot into bronze       applying   loop 2: from bronze into silver
judging    cuts judged, promised and listed        held       what waits, and deciding on it
server     which kind of source serves a pipeline
postgres   a PostgreSQL as a source                gaussdb    a server of the GaussDB family as one
stream     what a stream is made of: order, spool, parked transactions, copies, redaction
wal        what a slot keeps, and its budget       target     silver tables against layouts of their source
ports      what is asked of a source, of any kind  state      what bronze and the control tables say
"""
