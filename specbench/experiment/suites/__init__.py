"""Suites: many runs described in one file."""
