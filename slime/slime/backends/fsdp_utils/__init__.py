"""The FSDP2 training back end: any number of ranks, gloo or NCCL, full or LoRA, every loss of :mod:`slime.algorithms`."""
