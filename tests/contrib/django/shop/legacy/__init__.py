"""An app that had numbers of the database before."""
