"""`doctor`: find problems of Redis, the store and the settings that could cause duplicates, disorder or an outage.

`examination` gathers facts and runs the checks. The checks are in `redis`, `store` and `tags`. They are functions that
take the facts, return findings and send no requests.
"""
