"""Redis's own protocol over an AsyncIssuer, so that any Redis client of any language draws numbers."""
