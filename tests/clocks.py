"""A clock that the test moves."""


class Clock:
    """Seconds, or whatever the test counts in; `clock()` tells them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
