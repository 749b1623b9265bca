# Shape of Qwen3-0.6B, as its config.json has it. MODEL_ARGS_ROTARY_BASE: 5000000 for the 2507 releases.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 28
  --hidden-size 1024
  --ffn-hidden-size 3072
  --num-attention-heads 16
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
)
