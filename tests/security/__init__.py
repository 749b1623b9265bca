"""Attacks on a running server: what one request, one web page or one user must not do to others."""
