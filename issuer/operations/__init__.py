"""The public calls as steps: generators that yield requests to Redis and the store, which both drivers execute."""
