"""The Dockerfile and compose.yaml without Docker: read, and run in a clean root."""
