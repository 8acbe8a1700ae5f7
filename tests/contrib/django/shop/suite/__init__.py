"""Tests of the project, which Django's own test runner runs."""
