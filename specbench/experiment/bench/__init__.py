"""Benchmarks without a task: the time of a round, compared with the device's bandwidth."""
