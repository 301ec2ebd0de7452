"""Model pairs of a target and a draft, including the bundled pair."""
