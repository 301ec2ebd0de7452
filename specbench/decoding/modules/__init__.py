"""Modules that draft from the target's states: EAGLE-3 and multi-token prediction."""

CONFIG, WEIGHTS = "config.json", "model.safetensors"  # of a module's folder
