"""Cases with exact answers, to test other people's verification kernels; needs NumPy only."""
