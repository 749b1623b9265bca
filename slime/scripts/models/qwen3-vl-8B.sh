# Shape of the language model in Qwen3-VL-8B, as text_config of its config.json has it.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 36
  --hidden-size 4096
  --ffn-hidden-size 12288
  --num-attention-heads 32
  --group-query-attention
  --num-query-groups 8
  --kv-channels 128
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-5000000}"
  --disable-bias-linear
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --qk-layernorm
  --vocab-size 151936
  --untie-embeddings-and-output-weights
)
