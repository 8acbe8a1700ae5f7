"""HTTP over an AsyncIssuer: the routes call its methods and show the results as JSON. Needs the extra `server`."""
