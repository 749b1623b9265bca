"""Names that loss plugins import from here. They work on whole-vocabulary logits and need no Megatron."""
