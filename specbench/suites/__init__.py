"""Suites: many runs written down in one file."""
