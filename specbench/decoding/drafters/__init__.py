"""Drafters beside the draft model: prompt lookup, and heads on the target's states."""
