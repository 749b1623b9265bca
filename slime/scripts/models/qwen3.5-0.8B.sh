# Shape of the language model in Qwen3.5-0.8B, as text_config of its config.json has it. Three of four layers are
# linear attention, whose state would run from one packed sample into the next: samples are padded instead.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
  --swiglu
  --num-layers 24
  --hidden-size 1024
  --ffn-hidden-size 3584
  --num-attention-heads 8
  --group-query-attention
  --num-query-groups 2
  --kv-channels 256
  --use-rotary-position-embeddings
  --rotary-base "${MODEL_ARGS_ROTARY_BASE:-10000000}"
  --disable-bias-linear
  --normalization RMSNorm
  --norm-epsilon 1e-6
  --qk-layernorm
  --vocab-size 248320
  --rotary-percent 0.25
  --attention-output-gate
  --no-pack-sequences
)
