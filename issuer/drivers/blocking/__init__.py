"""The blocking driver: threads that wait, with a deadline, and never spin.

`connections` talks to Redis, `runner` runs the core's generators, `flight` lets one caller lead while the others wait,
`line` is a tag as this process sees it: the way of a number from `next()` to the script goes through `line.draw`.
"""
