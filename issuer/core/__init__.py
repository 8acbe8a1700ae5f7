"""The rules between a process, Redis and the store, written once and without I/O.

Each operation is a generator. It yields steps, such as a call to Redis, a call to the store or a pause. A driver runs
each step and sends its result back into the generator.

The module `steps` defines the steps. `requests` checks the arguments of users.

`supply` contains everything that a draw needs beyond one call to Redis. `supply.supply` combines `state` (what this
process knows about a tag), `mode` (numbers come from Redis, from leases or from the store) and `refill` (fetches
segments and leases with a `fetcher`). `local_buffer` keeps numbers in memory. `extend` loads a segment into Redis,
`direct` reserves a segment for this process alone, and `lease` draws numbers in advance. A flight, see `steps`, is
work, such as fetching a segment, that one caller does for all callers. `record` reads a tag's record and checks which
store its hash belongs to. `floor` makes Redis skip numbers. `events` defines the events and their lines in the log.
`arithmetic` computes how fast a tag is used. `error_mapping` turns replies of stores and scripts into public errors.
"""
