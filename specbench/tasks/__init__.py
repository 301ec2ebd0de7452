"""Tasks: the source of prompts, the limit on new tokens, and the scoring of answers."""
