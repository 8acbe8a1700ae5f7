"""`doctor`: what in this Redis, this store and these settings weakens the promise.

`examination` gathers the facts and judges them. `redis`, `store` and `tags` hold the checks, which are pure functions
from facts to findings.
"""
