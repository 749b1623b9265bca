"""Models that programs train over an interface: what they send, their losses, and the ranks that compute them."""
