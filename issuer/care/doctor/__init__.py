"""`doctor`: what in this Redis, this store and these settings weakens the promise.

`examination` gathers `facts`, `diagnosis` judges them: `redis`, `store` and `tags` hold the checks, pure functions from
facts to `finding`s.
"""
