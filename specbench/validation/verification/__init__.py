"""Verification of a finished run, which may come from anyone."""
