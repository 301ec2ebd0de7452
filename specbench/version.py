"""The version of specbench, which runs and their keys carry."""

__version__ = "0.1.0"
