"""`issuer import`: takes over tags from the tables of other issuers, so that no number is issued twice."""
