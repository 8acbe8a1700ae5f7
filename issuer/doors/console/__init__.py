"""The console: pages for operators, at /console of the HTTP server. They work without scripts."""
