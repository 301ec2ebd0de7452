"""Transformers models behind a small runner: load, forward a few tokens, rewind."""
