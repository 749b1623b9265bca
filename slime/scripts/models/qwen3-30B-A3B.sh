# Shape of Qwen3-30B-A3B, as its config.json has it. MODEL_ARGS_ROTARY_BASE: 10000000 for the 2507 releases.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 48
  --hidden-size 2048
  --ffn-hidden-size 6144
  --num-attention-heads 32
  --group-query-attention
  --num-query-groups 4
  --kv-channels 128
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
  --disable-bias-linear
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --qk-layernorm
  --vocab-size 151936
  --untie-embeddings-and-output-weights
  --num-experts 128
  --moe-ffn-hidden-size 768
  --moe-router-topk 8
)
