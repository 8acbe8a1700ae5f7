"""`issuer chaos` and `issuer demo`: servers, proxies that cause faults, drawing processes, and the check."""
