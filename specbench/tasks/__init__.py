"""Tasks: where prompts come from, how much may be generated, and how an answer is scored."""
