"""One plan over several workers: the schedule, the crew that carries it out, and Ray under it."""
