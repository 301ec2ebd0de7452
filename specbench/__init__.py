"""specbench measures speculative decoding: speed, acceptance and quality, on one engine."""

__version__ = "0.1.0"
