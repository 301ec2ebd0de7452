"""Transformers models behind a small runner: load, read tokens at any positions."""
