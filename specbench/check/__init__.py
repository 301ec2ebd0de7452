"""Check that a pair is decoded correctly, by plain forward passes and closed forms."""
