"""Snowflake: numbers from time, machine number and sequence, without a counter."""
