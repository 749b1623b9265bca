"""What the training back ends share: the actors, their data and micro-batches, the schedule, offloading. FSDP2 and Megatron build on it."""
