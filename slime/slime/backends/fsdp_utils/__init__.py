"""The FSDP2 back end: any number of ranks, gloo or NCCL, full or LoRA training, every loss of :mod:`slime.algorithms`."""
