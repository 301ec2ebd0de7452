"""Audit of decoders that specbench does not own: do their texts follow the target?"""
