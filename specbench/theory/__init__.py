"""What theory says of a run, beside what was measured."""
