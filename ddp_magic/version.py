"""The version, compared between the notebook and its ranks."""

__version__ = "0.1.0"
