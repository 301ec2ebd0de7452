"""DIVERSED heads: what weighs target against draft, its files on disk, and where they lie."""
