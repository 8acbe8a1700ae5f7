"""Care for tags: check the store, its ledger and Redis, repair tags, and load segments in the background."""
