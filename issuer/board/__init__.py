"""The board: what operators look at.

A collector reads all tags into a file. The console and `issuer top` show the file.
"""
