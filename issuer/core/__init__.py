"""The protocol, written once, without I/O.

Each operation is a generator that yields the steps it needs, a call to Redis or to the store, a pause, a wait, and is
sent the results; a driver runs it. `steps` says what a step is, `requests` checks what users ask.

`supply` is a draw's cold half. It stands on `refill` (who fetches the next segment or lease while others wait), and
that on `source` (where a process's numbers of a tag come from). `hand` holds numbers in memory, `flight` lets one fetch
for all. `extend` gets a segment into Redis, `direct` into a process, `lease` numbers out of Redis into a process;
`retire` takes numbers out of circulation: recover, halt, delete, raise. `inspection` and `verification` look and change
nothing; `discrepancies` is what the latter finds, `doctor` judges all there is. `arithmetic` holds the sums. `outcomes`
turns what a store or a script answered into the errors that users see.
"""
