"""Scripts that measure what pages say."""
