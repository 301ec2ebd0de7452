"""Comparisons of decoded texts with their exact laws, which plain forward passes give."""
