"""Shared base of the training back ends: actors, data, micro-batches, schedule and offloading."""
