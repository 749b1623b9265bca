# Shape of Qwen2.5-7B, as its config.json has it.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 28
  --hidden-size 3584
  --ffn-hidden-size 18944
  --num-attention-heads 28
  --group-query-attention
  --num-query-groups 4
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
  --disable-bias-linear
  --add-qkv-bias
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --vocab-size 152064
  --untie-embeddings-and-output-weights
)
