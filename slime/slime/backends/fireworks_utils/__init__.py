"""Training and sampling at Fireworks; see `service`."""
