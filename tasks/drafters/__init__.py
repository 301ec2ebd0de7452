"""Training of modules that draft: EAGLE-3, and multi-token prediction."""
