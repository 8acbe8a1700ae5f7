"""Looks at tags, ledger, store and Redis: nothing is changed."""
