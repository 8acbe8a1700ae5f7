"""Stores in SQL databases: PostgreSQL, MySQL and MariaDB."""
