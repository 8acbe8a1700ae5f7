"""Calls of the public face, as steps for a driver of either colour to run."""
