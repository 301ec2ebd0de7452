"""Traces: one sample token by token, from a run's records alone."""
