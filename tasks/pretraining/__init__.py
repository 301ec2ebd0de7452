"""Building the bundled pairs from their recipes: tokenizer, models, and heads."""
