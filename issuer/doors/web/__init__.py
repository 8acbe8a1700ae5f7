"""The HTTP API: its routes call an AsyncIssuer and show the results as JSON. Needs the extra `server`."""
