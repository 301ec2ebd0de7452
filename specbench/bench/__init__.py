"""Timing systems without a task: what a round costs, and how near it is to what the device can."""
