"""The arguments of a run, flat under the contract's names.

Written by ``python -m slime.arguments.generate`` from the declared flags. Do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from slime.args.base import DERIVED, FlatArguments

if TYPE_CHECKING:
    from slime.arguments.evaluation import EvalDataset


@dataclass(kw_only=True, eq=False, repr=False)
class Arguments(FlatArguments):
    """Every flag of the training core, and what the derivations add."""

    config: str | None = None
    custom_config_path: str | None = None
    custom_arguments_path: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_gpus: int | None = None
    gpu_memory_gb: float | None = None
    num_gpus_per_node: int = 8
    num_nodes: int = DERIVED
    head_address: str | None = None
    node_timeout: float = 600.0
    forward_env: list[str] = field(default_factory=list)
    actor_num_nodes: int = 1
    actor_num_gpus_per_node: int = 8
    rollout_num_gpus: int = DERIVED
    rollout_num_gpus_per_engine: int = 1
    ray_address: str | None = None
    run_dir: str = DERIVED
    share_gpu: bool = False
    train_env_vars: dict[str, Any] = field(default_factory=dict)
    http_proxy: str | None = None
    colocate: bool = False
    offload_train: bool = DERIVED
    offload_rollout: bool = DERIVED
    offload: bool = False
    hf_checkpoint: str = DERIVED
    ref_load: str = DERIVED
    load: str | None = None
    save: str | None = None
    save_interval: int | None = None
    save_keep: int = 3
    save_hf: str | None = None
    resume: bool = False
    max_trainer_restarts: int = 3
    start_rollout_id: int | None = None
    rollout_function_path: str = "slime.rollout.sglang_rollout.generate_rollout"
    eval_function_path: str = DERIVED
    custom_generate_function_path: str | None = None
    custom_rm_path: str | None = None
    rm_type: str | None = None
    rm_url: str | None = None
    group_rm: bool = False
    data_source_path: str = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
    buffer_filter_path: str | None = None
    rollout_sample_filter_path: str | None = None
    rollout_all_samples_process_path: str | None = None
    rollout_sample_hook_path: list[str] | None = None
    dynamic_sampling_filter_path: str | None = None
    custom_reward_post_process_path: str | None = None
    custom_convert_samples_to_train_data_path: str | None = None
    rollout_data_postprocess_path: str | None = None
    custom_rollout_log_function_path: str | None = None
    custom_eval_rollout_log_function_path: str | None = None
    num_rollout: int | None = None
    serve_when_done: bool = False
    rollout_batch_size: int = DERIVED
    n_samples_per_prompt: int = 1
    over_sampling_batch_size: int = DERIVED
    partial_rollout: bool = False
    mask_offpolicy_in_partial_rollout: bool = False
    rollout_temperature: float = 1.0
    rollout_top_p: float = 1.0
    rollout_top_k: int = -1
    rollout_max_response_len: int | None = None
    rollout_max_context_len: int | None = None
    rollout_max_prompt_len: int | None = None
    rollout_stop: list[str] | None = None
    rollout_stop_token_ids: list[int] | None = None
    rollout_skip_special_tokens: bool = False
    rollout_seed: int = 42
    rollout_external: bool = False
    rollout_external_engine_addrs: list[str] | None = None
    use_fault_tolerance: bool = True
    rollout_health_check_interval: float = 5.0
    rollout_health_check_timeout: float = 30.0
    rollout_health_check_first_wait: float = 0.0
    max_weight_staleness: int | None = None
    stale_samples: Literal["drop", "mask", "correct"] = "drop"
    update_weights_interval: int = 1
    rollout_global_dataset: bool = True
    prompt_data: str | None = None
    input_key: str = "input"
    label_key: str | None = None
    metadata_key: str = "metadata"
    tool_key: str = "tools"
    multimodal_keys: dict[str, str] | None = None
    loss_mask_type: Literal["qwen", "qwen3", "distill_qwen", "qwen3_5"] = "qwen"
    apply_chat_template: bool = False
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    rollout_shuffle: bool = False
    num_epoch: int | None = None
    eval_interval: int | None = None
    skip_eval_before_train: bool = False
    eval_prompt_data: list[str] | None = None
    eval_config: str | None = None
    eval_input_key: str = DERIVED
    eval_label_key: str | None = None
    eval_tool_key: str = DERIVED
    eval_reward_key: str | None = None
    n_samples_per_eval_prompt: int = 1
    eval_temperature: float = DERIVED
    eval_top_p: float = DERIVED
    eval_top_k: int = DERIVED
    eval_max_response_len: int | None = None
    eval_max_context_len: int | None = None
    eval_max_prompt_len: int | None = None
    eval_min_new_tokens: int | None = None
    advantage_estimator: Literal[
        "grpo",
        "gspo",
        "cispo",
        "ppo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "step_wise",
        "on_policy_distillation",
    ] = "grpo"
    custom_advantage_function_path: str | None = None
    normalize_advantages: bool = False
    gamma: float = 1.0
    kl_coef: float = 0.0
    dynamic_history: bool = False
    rewards_normalization: bool = True
    grpo_std_normalization: bool = True
    compute_advantages_and_returns: bool = True
    reward_key: str | None = None
    use_opd: bool = False
    opd_kl_coef: float = 1.0
    opd_clip: float | None = None
    opd_teacher: Literal["policy", "prm"] = "policy"
    distill_topk: int = 0
    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    custom_loss_function_path: str | None = None
    eps_clip: float = 0.2
    eps_clip_high: float = DERIVED
    eps_clip_c: float | None = None
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    use_unbiased_kl: bool = False
    entropy_coef: float = 0.0
    use_rollout_entropy: bool = False
    ref_update_interval: int | None = None
    use_rollout_logprobs: bool = False
    use_routing_replay: bool = False
    use_rollout_routing_replay: bool = False
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    custom_tis_function_path: str | None = None
    get_mismatch_metrics: bool = False
    use_opsm: bool = False
    opsm_delta: float = 0.0001
    custom_pg_loss_reducer_function_path: str | None = None
    lambd: float = 1.0
    value_clip: float = 0.2
    num_critic_only_steps: int = 0
    critic_lr: float = DERIVED
    critic_lr_warmup_iters: int = 0
    critic_load: str | None = None
    critic_save: str | None = None
    critic_num_nodes: int = DERIVED
    critic_num_gpus_per_node: int = DERIVED
    prm_enable: bool = False
    prm_num_gpus: int = 0
    prm_num_gpus_per_engine: int = 1
    prm_model_path: str = DERIVED
    prm_m: int = 4
    prm_temperature: float = 1.0
    prm_max_new_tokens: int = 2048
    prm_router_ip: str | None = None
    prm_router_port: int | None = None
    train_backend: Literal["fsdp", "megatron"] = DERIVED
    train_dtype: Literal["float32", "bfloat16"] = DERIVED
    attn_implementation: Literal[
        "sdpa", "eager", "cudnn", "varlen", "auto", "flash_attention_2", "flash_attention_4"
    ] = "sdpa"
    gradient_checkpointing: bool = False
    unchecked_layers: int | None = None
    kept_attention_layers: int | None = None
    fsdp_cpu_offload: bool = False
    only_train_params_name_list: list[str] | None = None
    freeze_params_name_list: list[str] | None = None
    deterministic_mode: bool = False
    seed: int = 1234
    micro_batch_size: int = 1
    global_batch_size: int = DERIVED
    num_steps_per_rollout: int = DERIVED
    use_dynamic_global_batch_size: bool = False
    disable_rollout_trim_samples: bool = False
    use_dynamic_batch_size: bool = False
    max_tokens_per_gpu: int | None = None
    pack_sequences: bool = True
    log_probs_chunk_size: int = 1024
    logprob_kernel: Literal["triton", "torch"] | None = None
    calculate_per_token_loss: bool = False
    update_weight_buffer_size: int = 536870912
    weight_update_mode: Literal["retract", "in_place"] = "retract"
    distributed_timeout_minutes: int = 10
    update_weight_mode: Literal["full", "delta", "adapter"] = DERIVED
    update_weight_transport: Literal["nccl", "shared", "disk"] = "nccl"
    update_weight_disk_dir: str | None = None
    update_weight_disk_keep_files: bool = False
    check_weight_update_equal: bool = False
    use_lora: bool = False
    lora_rank: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    lora_kernel: Literal["fused", "peft"] | None = None
    optimizer: Literal["adam"] = "adam"
    lr: float = 1e-06
    min_lr: float = 0.0
    lr_decay_style: Literal["constant", "linear", "cosine", "WSD"] = "constant"
    lr_decay_iters: int | None = None
    lr_wsd_decay_iters: int | None = None
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    use_checkpoint_lr_scheduler: bool = False
    override_lr_scheduler: bool = False
    reset_optimizer_states: bool = False
    lr_warmup_iters: int = 0
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    lr_warmup_init: float = 0.0
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_eps: float = 1e-08
    clip_grad: float = 1.0
    fuses: list[str] | None = None
    resume_training: bool = False
    before_push_path: str | None = None
    canary_engine: bool = False
    swiglu: bool = False
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    group_query_attention: bool = False
    num_query_groups: int | None = None
    kv_channels: int | None = None
    use_rotary_position_embeddings: bool = False
    rotary_base: float | None = None
    disable_bias_linear: bool = False
    add_qkv_bias: bool = False
    normalization: Literal["LayerNorm", "RMSNorm"] | None = None
    norm_epsilon: float | None = None
    qk_layernorm: bool = False
    vocab_size: int | None = None
    untie_embeddings_and_output_weights: bool = False
    rotary_percent: float | None = None
    attention_output_gate: bool = False
    num_experts: int | None = None
    moe_ffn_hidden_size: int | None = None
    moe_router_topk: int | None = None
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    transformer_impl: Literal["local", "transformer_engine"] = DERIVED
    attention_backend: Literal["auto", "flash", "fused", "unfused"] = "auto"
    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    use_precision_aware_optimizer: bool = False
    optimizer_cpu_offload: bool = False
    overlap_cpu_optimizer_d2h_h2d: bool = False
    spec: list[str] | None = None
    custom_model_provider_path: str | None = None
    custom_megatron_init_path: str | None = None
    custom_megatron_before_log_prob_hook_path: str | None = None
    custom_megatron_before_train_step_hook_path: str | None = None
    use_tensorboard: bool = False
    tensorboard_dir: str | None = None
    tb_project_name: str | None = None
    tb_experiment_name: str | None = None
    use_wandb: bool = False
    wandb_key: str | None = None
    wandb_host: str | None = None
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    wandb_project: str = "openclaw_rl"
    wandb_group: str | None = None
    wandb_run_id: str | None = None
    wandb_random_suffix: bool = True
    wandb_team: str | None = None
    wandb_dir: str | None = None
    wandb_always_use_train_step: bool = False
    log_multi_turn: bool = False
    log_passrate: bool = False
    log_reward_category: str | None = None
    log_correct_samples: bool = False
    dry_run: bool = False
    debug_rollout_only: bool = False
    debug_train_only: bool = False
    save_debug_rollout_data: str | None = None
    save_debug_train_data: str | None = None
    load_debug_rollout_data: str | None = None
    load_debug_rollout_data_subsample: float | None = None
    use_pytorch_profiler: bool = False
    profile_step_start: int = 10
    profile_step_end: int = 12
    profile_target: Literal["train_overall", "train_actor", "train_log_probs"] = "train_overall"
    dump_details: str | None = None
    record_memory_history: bool = False
    memory_snapshot_dir: str = "."
    memory_snapshot_path: str = "snapshot.pickle"
    memory_snapshot_num_steps: int | None = None
    prm_step_coef: float = 1.0
    prm_sglang_url: str | None = None
    sglang_router_ip: str | None = None
    sglang_router_port: int | None = None
    sglang_router_request_timeout_secs: int = 14400
    sglang_server_concurrency: int = 512
    router: Literal["auto", "direct", "sglang"] = "auto"
    sglang_chunked_prefill_size: int | None = None
    sglang_context_length: int | None = None
    sglang_disable_cuda_graph: bool | None = None
    sglang_disable_radix_cache: bool | None = None
    sglang_dtype: str | None = None
    sglang_enable_deterministic_inference: bool | None = None
    sglang_enable_hierarchical_cache: bool | None = None
    sglang_enable_kv_cache_sharding: bool | None = None
    sglang_enable_lmcache: bool | None = None
    sglang_enable_nccl_nvls: bool | None = None
    sglang_enable_symm_mem: bool | None = None
    sglang_kv_cache_dtype: str | None = None
    sglang_mamba_full_memory_ratio: float | None = None
    sglang_max_mamba_cache_size: int | None = None
    sglang_max_prefill_tokens: int | None = None
    sglang_max_running_requests: int | None = None
    sglang_max_total_tokens: int | None = None
    sglang_mem_fraction_static: float | None = None
    sglang_pipeline_parallel_size: int | None = None
    sglang_pp_size: int | None = None
    sglang_quantization: str | None = None
    sglang_speculative_algorithm: str | None = None
    sglang_speculative_eagle_topk: int | None = None
    sglang_tokenizer_worker_num: int | None = None
    megatron_to_hf_mode: str = "bridge"
    balance_data: bool = True
    attention_softmax_in_fp32: bool = True
    accumulate_allreduce_grads_in_fp32: bool = True
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    fsdp_cpu_backend: str = "gloo"
    rollout_data_transport: str = "object-store"
    async_collection: bool = True
    reward_aggregation: str = "majority"
    backend: str = "sglang"
    # Set by the derivations; no flags of their own.
    eval_datasets: list[EvalDataset] = field(default_factory=list)
    train_backend_because: tuple[str, ...] = ()
    transformer_impl_because: str = ""
    use_critic: bool = False
    unused_flags: tuple[str, ...] = ()
