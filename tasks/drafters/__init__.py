"""Training of heads that draft: EAGLE-3, and multi-token prediction."""
