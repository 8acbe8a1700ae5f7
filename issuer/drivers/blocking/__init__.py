"""The blocking driver: threads wait with a deadline.

`combiner` draws numbers for the callers of a tag. `Combiner.next` calls `Node.draw`, and this calls `Link.ask`. Every
other call to Redis goes through `drivers/wire.py`. `runner` runs the generators of `core`.
"""
