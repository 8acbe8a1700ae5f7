"""The blocking driver: threads that wait, with a deadline, and never spin.

`combiner` is a tag's callers, and a number's way from `next()` to the Lua script: `Combiner.next`, `Node.draw`,
`Link.ask`. `connections` also knows the long way, `runner` runs the core's generators.
"""
