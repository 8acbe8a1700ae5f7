"""The public calls as steps: generators that yield the requests to Redis and to the store. Both drivers run them."""
