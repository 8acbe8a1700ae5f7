"""The blocking driver: threads wait with a deadline.

`combiner` serves a tag's callers. A draw calls `Combiner.next`, `Node.draw` and `Link.ask` in turn. Every other call to
Redis goes through `wire`, which is generated from aio/wire.py. `runner` runs the generators of `core`.
"""
