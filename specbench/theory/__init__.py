"""Theoretical predictions for a run, compared with measurements."""
