"""Execute one plan with several Ray workers."""
