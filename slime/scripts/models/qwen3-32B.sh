# Shape of Qwen3-32B, as its config.json has it. MODEL_ARGS_ROTARY_BASE: 5000000 for the 2507 releases.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 64
  --hidden-size 5120
  --ffn-hidden-size 25600
  --num-attention-heads 64
  --group-query-attention
  --num-query-groups 8
  --kv-channels 128
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
  --disable-bias-linear
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --qk-layernorm
  --vocab-size 151936
  --untie-embeddings-and-output-weights
)
