"""Loading Transformers models and running them over token positions."""
