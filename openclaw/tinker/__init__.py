"""A server of the Tinker interface: programs train adapters on the engines and training ranks of one's own machines."""
