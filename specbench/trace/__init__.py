"""Traces: how one sample's text came about, token by token, from a run's records alone."""
