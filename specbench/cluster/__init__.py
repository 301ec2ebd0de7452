"""One plan over several workers: who does what, and Ray."""
