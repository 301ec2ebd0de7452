"""Training: the bundled models and the DIVERSED heads."""
