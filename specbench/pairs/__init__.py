"""Model pairs: which target and draft belong together, and where their heads lie."""
