"""DIVERSED heads: networks for the weight on the target, their files, and their registry."""
