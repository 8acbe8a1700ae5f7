"""Converts the counter of a tag into the numbers and texts that users see. It does no I/O, and uses no clock."""
