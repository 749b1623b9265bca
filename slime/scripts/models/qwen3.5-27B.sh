# Shape of the language model in Qwen3.5-27B, as text_config of its config.json has it. Three of four layers are
# linear attention, whose state would run from one packed sample into the next: samples are padded instead.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 64
  --hidden-size 5120
  --ffn-hidden-size 17408
  --num-attention-heads 24
  --group-query-attention
  --num-query-groups 4
  --kv-channels 256
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-10000000}"
  --disable-bias-linear
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --qk-layernorm
  --vocab-size 248320
  --untie-embeddings-and-output-weights
  --rotary-percent 0.25
  --attention-output-gate
  --no-pack-sequences
)
