"""Is a pair decoded as the methods say? By plain forward passes and closed forms."""
