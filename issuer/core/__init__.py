"""The protocol, written once, without I/O.

Each operation is a generator that yields the steps it needs, a call to Redis or to the store, and is sent the results;
a driver runs it. `steps` says what a step is. `extend` gets a segment into Redis, `direct` into a process; `retire`
takes numbers out of circulation: recover, delete, raise. `arithmetic` holds the sums. `outcomes` turns what a store or
a script answered into the errors that users see.
"""
