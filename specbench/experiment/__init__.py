"""An experiment: its plan, its execution and its results on disk."""
