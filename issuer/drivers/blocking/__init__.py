"""The blocking driver: threads that wait, with a deadline, and never spin.

`line` is a tag's callers, and a number's way from `next()` to the Lua script: `Line.next`, `Connections.draw`,
`Link.ask`. `connections` also knows the long way, `runner` runs the core's generators.
"""
