"""Parts for frameworks. Each module imports its framework; nothing of the issuer imports these modules."""
