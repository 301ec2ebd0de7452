"""Results of other tools as runs: ``specbench import``."""
