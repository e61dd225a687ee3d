"""Federated learning with projected trajectory regularization, and the methods it is compared with."""

__version__ = "0.1.0"
