"""Numbers with intervals: estimates, contrasts, fronts and leads of samples."""
