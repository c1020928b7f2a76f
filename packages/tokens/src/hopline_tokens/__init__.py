"""JSON Web Tokens of one issuer, as credentials of clients."""

__version__ = "0.1.0"
