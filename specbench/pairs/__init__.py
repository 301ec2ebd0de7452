"""Model pairs: which target and draft belong together, and how the bundled one is made."""
