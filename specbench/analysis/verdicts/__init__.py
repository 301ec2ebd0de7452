"""What numbers show: rows of contrasts, the words for them, and remarks."""
