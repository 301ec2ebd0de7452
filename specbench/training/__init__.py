"""Training of bundled models, draft models and DIVERSED heads."""
