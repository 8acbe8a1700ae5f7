"""The methods that both interfaces have, as coroutines. The blocking ones run these; their module is generated."""
