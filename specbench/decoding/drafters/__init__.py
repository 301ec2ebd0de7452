"""Drafters, one file each, and the policies that stop them."""
