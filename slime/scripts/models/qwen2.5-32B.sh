# Shape of Qwen2.5-32B, as its config.json has it. MODEL_ARGS_NORM_EPSILON: 1e-6 for the Instruct release.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 64
  --hidden-size 5120
  --ffn-hidden-size 27648
  --num-attention-heads 40
  --group-query-attention
  --num-query-groups 8
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
  --disable-bias-linear
  --add-qkv-bias
  --normalization RMSNorm
  --norm-epsilon "${MODEL_ARGS_NORM_EPSILON:-1e-5}"
  --vocab-size 152064
  --untie-embeddings-and-output-weights
)
