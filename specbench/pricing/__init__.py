"""Acceptance without decoding: tokens per round of any drafter and policy, from texts' scores."""
