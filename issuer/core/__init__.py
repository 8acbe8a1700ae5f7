"""The protocol, written once, without I/O.

Each operation is a generator that yields the steps it needs, a call to Redis or to the store, a pause, a wait, and is
sent the results; a driver runs it. `steps` says what a step is, `requests` checks what users ask.

`supply` is a draw's cold half: `supply.supply` is made of `state` (a tag as this process knows it), `mode` (whether its
numbers come from Redis, leases or the store), `refill` (what is fetched: a segment or a lease, each by a `fetcher`).
`local_buffer` holds numbers in memory. `extend` gets a segment into Redis, `direct` into a process, `lease` numbers out
of Redis into a process. `single_flight` lets one fetch for all. `record` reads a tag's record, `recovery` takes numbers
out of circulation: recover, halt, delete, raise. `inspect` looks and changes nothing: `inspection`, `verification` and
the `discrepancies` that it finds, `doctor`, which judges all there is. `arithmetic` holds the sums. `error_mapping`
turns the answers of stores and scripts into the errors that users see.
"""
