"""An app whose models draw their numbers."""
