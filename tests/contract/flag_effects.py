"""Which test shows what a flag does: it fails when the flag is ignored.

A row is a test and the flags, without dashes, whose effect it shows. Every flag that is accepted stands in one row.
`test_flag_effects.py` checks the rows' form; ``python -m tests.flag_mutations`` lets the code read a flag's default and sees
the test fail.
"""

from __future__ import annotations

CONTRACT, INTEGRATION = "tests/contract", "tests/integration"
CORE, FSDP, RAY = "tests/unit/slime_core", "tests/unit/fsdp", "tests/unit/ray"
BRIDGE, LAUNCH, REWARDS = "tests/unit/bridge", "tests/unit/launch", "tests/unit/rewards"
PUSHES, RENTED = "tests/unit/weight_sync", "tests/unit/rented"
FIREWORKS = f"{RENTED}/test_fireworks_rental.py"
MEGATRON = f"{CORE}/test_flags_of_megatron.py"
ACTOR, TRAINING = f"{FSDP}/test_flags_of_the_actor.py", f"{FSDP}/test_flags_of_training.py"
SAMPLING, ENGINES = f"{CORE}/test_flags_of_sampling.py", f"{CORE}/test_flags_of_engines.py"
COLOCATE = f"{CORE}/test_colocate_arguments.py"
ACTORS, LOOPS = f"{RAY}/test_flags_of_actors.py", f"{RAY}/test_flags_of_loops.py"
SHAPE, RULES, FILES = f"{CORE}/test_shape_flags.py", f"{CORE}/test_argument_rules.py", f"{CORE}/test_argument_files.py"
HOOKS, DUMPS = f"{RAY}/test_manager_hooks.py", f"{RAY}/test_manager_dumps.py"
LOSSES, BY_HAND = f"{FSDP}/test_policy_losses.py", f"{FSDP}/test_advantages_and_losses.py"
ROLLOUT, DATA = f"{RAY}/test_sglang_rollout.py", f"{CORE}/test_data_source.py"
BATCHES, TRAINER = f"{RAY}/test_train_data.py", f"{FSDP}/test_trainer_flags.py"
TRACKING, METRICS = f"{CORE}/test_tracking.py", f"{CORE}/test_requested_metrics.py"

EFFECTS = {
    # Files of flags
    f"{FILES}::test_a_config_file_is_a_command_line": "config",
    f"{FILES}::test_custom_config_sets_and_creates_attributes": "custom-config-path",
    f"{CORE}/test_plugin_files.py::test_a_method_declares_its_own_flags": "custom-arguments-path",
    # A service in the place of ranks and engines
    f"{RENTED}/test_flags.py::test_models_and_lengths_that_it_does_not_have_are_named": """tinker-model
        tinker-judge-model""",
    f"{RENTED}/test_datums.py::test_the_sum_of_the_service_is_our_loss_with_its_gradient": "tinker-loss",
    f"{RENTED}/test_trainer.py::test_epochs_repeat_the_steps": "tinker-epochs",
    f"{RENTED}/test_trainer.py::test_a_state_of_another_program_is_a_start": "tinker-start",
    f"{RENTED}/test_flags.py::test_what_cannot_work_is_refused_by_name": "tinker-prices",
    f"{FIREWORKS}::test_the_trainer_comes_first_then_a_deployment_that_loads_from_it": """fireworks-training-shape
        fireworks-gpus""",
    f"{FIREWORKS}::test_what_cannot_work_costs_nothing": "fireworks-deployment",
    f"{FIREWORKS}::test_what_is_kept_is_named_with_its_end": "fireworks-keep",
    f"{FIREWORKS}::test_waiting_has_an_end_that_says_what_to_do": "fireworks-wait-minutes",
    # Places
    f"{ENGINES}::test_a_role_has_its_gpus": """actor-num-gpus-per-node rollout-num-gpus prm-num-gpus
        rollout-num-gpus-per-engine prm-num-gpus-per-engine critic-num-gpus-per-node debug-rollout-only prm-router-ip
        prm-enable rollout-external-engine-addrs""",
    f"{RAY}/test_placement.py::test_modes": "debug-train-only",
    f"{CORE}/test_vllm_arguments.py::test_the_engine_is_that_of_the_flag": "backend vllm-python vllm-options",
    f"{COLOCATE}::test_the_engines_have_the_gpus_of_the_trainer": "colocate",
    f"{COLOCATE}::test_both_are_offloaded_on_gpus_unless_the_flags_say_otherwise": "offload-rollout",
    f"{RAY}/test_colocate.py::test_who_is_not_offloaded_stays_and_the_order_is_kept": "offload-train",
    f"{COLOCATE}::test_what_does_not_go_together": "offload",
    f"{FSDP}/test_fused_kernels.py::test_the_flag_compiles_every_layer": "fused-kernels",
    f"{FSDP}/test_people.py::test_each_person_is_trained_as_alone": "adapter-per-person people-in-memory",
    f"{FSDP}/test_fused_lora.py::test_the_default_is_fused_on_cuda_only": "lora-kernel",
    f"{CORE}/test_base_quantization.py::test_only_the_policys_engine_quantises_its_base": "base-quantization",
    f"{CORE}/test_memory_budget.py::test_attention_is_kept_before_layers_are_unchecked_and_flags_win": """unchecked-layers
        kept-attention-layers""",
    f"{FSDP}/test_memory_history.py::test_a_rank_records_from_its_start_where_the_flag_wants_it": (
        "record-memory-history"
    ),
    f"{FSDP}/test_memory_history.py::test_a_snapshot_is_written_where_and_when_the_flags_say": """memory-snapshot-dir
        memory-snapshot-path memory-snapshot-num-steps""",
    f"{RAY}/test_placement.py::test_one_gpu_is_shared_by_all_roles": "share-gpu",
    f"{LOOPS}::test_a_cluster_has_the_gpus_of_the_flag_or_those_that_the_roles_need": "num-gpus",
    f"{CORE}/test_memory_budget.py::test_the_trainer_refuses_at_its_start": "gpu-memory-gb",
    f"{RULES}::test_flags_of_the_trainer_that_cannot_work": "optimizer override-lr-scheduler",
    f"{CORE}/test_machines.py::test_machines_follow_from_the_gpus": "actor-num-nodes",
    f"{CORE}/test_machines.py::test_a_run_is_in_the_cluster_of_its_job": "ray-address",
    f"{RAY}/test_nodes.py::test_the_flags_of_several_machines_reach_ray": """num-nodes num-gpus-per-node
        head-address node-timeout forward-env""",
    f"{TRAINING}::test_a_fuse_holds_back_the_step_before_it_changes_a_weight": "fuses",
    f"{RAY}/test_run_fuses.py::test_a_restart_stays_paused_until_the_flag_or_a_new_run": "resume-training",
    f"{RAY}/test_run_gate.py::test_a_refused_step_is_undone_and_the_next_one_trains": "before-push-path",
    "tests/unit/weight_sync/test_pushes.py::test_an_accepted_candidate_goes_to_the_others_only": "canary-engine",
    f"{RAY}/test_run_restart.py::test_a_rank_that_dies_in_the_first_push_ends_a_run_without_restarts": (
        "max-trainer-restarts"
    ),
    f"{CORE}/test_algorithm_arguments.py::test_what_would_have_no_effect_is_refused": "critic-num-nodes",
    f"{RULES}::test_external_engines_are_counted_and_exclude_own_ones": "rollout-external",
    f"{CORE}/test_arguments.py::test_megatron_chooses_its_layers_by_the_device": "device",
    f"{ACTORS}::test_ranks_have_the_variables_of_the_flag": "train-env-vars deterministic-mode",
    f"{ACTORS}::test_the_back_end_is_that_of_the_flag": "train-backend",
    f"{ACTORS}::test_only_the_critic_learns_in_the_first_rollouts": "num-critic-only-steps",
    f"{ACTORS}::test_engines_are_looked_at_in_the_interval_of_the_flag": "rollout-health-check-interval",
    f"{ACTORS}::test_engines_are_watched_where_the_flag_wants_it": """use-fault-tolerance data-source-path
        rollout-function-path eval-function-path""",
    f"{RAY}/test_engine_patience.py::test_an_engine_hangs_after_its_timeout_and_its_first_wait": """
        rollout-health-check-timeout rollout-health-check-first-wait""",
    f"{CORE}/test_http_rules.py::test_the_proxy_comes_from_its_flag": "http-proxy",
    f"{LOOPS}::test_a_run_has_as_many_rollouts_as_the_flag_says": "num-rollout",
    f"{LOOPS}::test_engines_serve_on_where_the_flag_wants_it": "serve-when-done",
    f"{LOOPS}::test_an_epoch_is_as_many_rollouts_as_use_every_prompt_once": "num-epoch",
    f"{RAY}/test_step_axes.py::test_the_run_saves_and_evaluates_at_the_end_of_an_epoch": "save-interval eval-interval",
    f"{RAY}/test_run_push.py::test_start_weights_are_evaluated_once": "skip-eval-before-train",
    f"{RAY}/test_run_push.py::test_weights_are_pushed_at_the_interval_and_at_the_end": "update-weights-interval",
    # Engines
    f"{ENGINES}::test_an_engine_is_started_with_it": """sglang-mem-fraction-static sglang-context-length
        sglang-reasoning-parser sglang-tool-call-parser weight-update-mode""",
    f"{ENGINES}::test_models_seeds_and_sizes_of_engines": "prm-model-path seed",
    f"{RAY}/test_server_command.py::test_a_router_port_alone_is_that_of_the_policys_router": """sglang-router-ip
        sglang-router-port""",
    f"{RAY}/test_server_command.py::test_a_router_gives_a_request_the_time_of_the_flag": (
        "sglang-router-request-timeout-secs"
    ),
    f"{RAY}/test_server_command.py::test_one_engine_has_a_router_where_the_flag_wants_one": "router",
    f"{INTEGRATION}/test_weight_sync.py::test_what_differs_after_a_push_is_named_and_requests_are_held": (
        "check-weight-update-equal"
    ),
    f"{PUSHES}/test_transports.py::test_a_push_has_the_transport_of_the_flags": """update-weight-mode
        update-weight-transport""",
    f"{PUSHES}/test_failed_pushes.py::test_weights_of_another_run_in_the_same_folder_stay": ("update-weight-disk-dir"),
    f"{PUSHES}/test_failed_pushes.py::test_every_version_stays_on_the_disk_where_the_flag_wants_it": (
        "update-weight-disk-keep-files"
    ),
    # Sampling
    f"{SAMPLING}::test_a_flag_is_in_the_request": """rollout-temperature rollout-top-p rollout-top-k
        rollout-max-response-len rollout-stop rollout-stop-token-ids rollout-skip-special-tokens""",
    f"{SAMPLING}::test_a_seed_is_given_to_deterministic_engines": "rollout-seed",
    f"{SAMPLING}::test_requests_at_a_time_are_those_of_all_engines": "sglang-server-concurrency",
    f"{SAMPLING}::test_a_flag_is_that_of_the_evaluation_set": """eval-input-key eval-label-key eval-tool-key
        n-samples-per-eval-prompt eval-temperature eval-top-p eval-top-k eval-max-response-len eval-min-new-tokens
        eval-max-prompt-len eval-max-context-len""",
    f"{SAMPLING}::test_sets_follow_the_rollout_where_no_flag_speaks": "eval-prompt-data rollout-max-context-len",
    f"{CORE}/test_eval_config.py::test_a_set_goes_before_defaults_and_those_before_flags": "eval-config",
    f"{REWARDS}/test_evaluation.py::test_a_dict_reward_without_the_key_names_the_flag": "eval-reward-key",
    # Rollouts
    f"{ROLLOUT}::test_of_a_list_only_what_has_no_reward_is_scored": "custom-generate-function-path",
    f"{HOOKS}::test_a_reward_class_scores_samples_and_lists": "custom-rm-path",
    f"{REWARDS}/test_graders.py::test_unknown_and_missing_graders_are_named": "rm-type",
    f"{REWARDS}/test_remote_reward.py::test_numbers_and_objects_are_rewards": "rm-url",
    f"{ROLLOUT}::test_a_group_reward_sees_the_group": "group-rm",
    f"{ROLLOUT}::test_the_filters_of_a_finished_rollout": """rollout-sample-filter-path
        rollout-all-samples-process-path""",
    f"{ROLLOUT}::test_hooks_see_each_answer_before_it_is_scored": "rollout-sample-hook-path",
    f"{ROLLOUT}::test_a_rollout_is_exactly_the_groups_asked_for": "dynamic-sampling-filter-path rollout-batch-size",
    f"{ROLLOUT}::test_spare_groups_fill_up_before_more_prompts_are_asked_for": "over-sampling-batch-size",
    f"{RAY}/test_partial_rollout.py::test_whatever_cuts_it_a_response_is_exact": ("mask-offpolicy-in-partial-rollout"),
    f"{RAY}/test_partial_rollout.py::test_aborted_groups_go_on_in_the_next_rollout": "partial-rollout",
    f"{BRIDGE}/test_rollout_bridge.py::test_stale_samples_are_dropped_with_a_reason_and_replaced": (
        "max-weight-staleness"
    ),
    f"{BRIDGE}/test_rollout_bridge.py::test_stale_samples_can_be_kept_for_the_loss_to_correct": "stale-samples",
    f"{HOOKS}::test_rewards_are_post_processed": "custom-reward-post-process-path",
    f"{HOOKS}::test_samples_are_converted_by_a_plugin": "custom-convert-samples-to-train-data-path",
    f"{HOOKS}::test_a_log_function_adds_to_the_default_logging_or_replaces_it": "custom-rollout-log-function-path",
    f"{HOOKS}::test_an_evaluation_log_function_does_too": "custom-eval-rollout-log-function-path",
    f"{FSDP}/test_postprocess.py::test_both_forms_are_called_and_changes_stay": "rollout-data-postprocess-path",
    f"{DUMPS}::test_a_dump_is_replayed_in_part": """save-debug-rollout-data load-debug-rollout-data
        load-debug-rollout-data-subsample""",
    f"{CORE}/test_arguments.py::test_dump_details_names_both_dumps": "dump-details",
    # Prompts
    f"{DATA}::test_groups_are_copies_with_running_numbers": "prompt-data n-samples-per-prompt",
    f"{DATA}::test_blank_samples_without_a_dataset": "disable-rollout-global-dataset",
    f"{DATA}::test_columns_have_the_names_of_the_flags": "input-key label-key metadata-key tool-key",
    f"{CORE}/test_multimodal_prompts.py::test_placeholders_become_parts_in_order": "multimodal-keys",
    f"{DATA}::test_a_prompt_is_rendered_with_the_templates_arguments": """apply-chat-template
        apply-chat-template-kwargs""",
    f"{DATA}::test_epochs_go_round_and_shuffle_depends_on_the_seed": "rollout-shuffle",
    f"{DATA}::test_longer_prompts_than_the_flag_allows_are_left_out": "rollout-max-prompt-len",
    f"{DATA}::test_the_buffer_is_filtered_by_the_flags_function": "buffer-filter-path",
    f"{RAY}/test_sft_rollout.py::test_the_mask_is_that_of_the_flag": "loss-mask-type",
    # Rewards and advantages
    f"{REWARDS}/test_reward_tables.py::test_the_table_of_the_contract": """disable-rewards-normalization
        disable-grpo-std-normalization""",
    f"{REWARDS}/test_reward_tables.py::test_rewards_may_be_dicts_and_what_is_logged_may_differ": "reward-key",
    f"{RAY}/test_trajectories.py::test_a_trajectory_has_one_reward_in_its_group": "dynamic-history",
    f"{FSDP}/test_advantage_estimators.py::test_a_custom_advantage_function_sets_both_streams": (
        "custom-advantage-function-path"
    ),
    f"{FSDP}/test_advantage_estimators.py::test_reinforce_plus_plus_is_that_of_plain_floats": """advantage-estimator
        normalize-advantages gamma kl-coef""",
    f"{BY_HAND}::test_teacher_term_is_added_where_there_is_a_teacher": "use-opd opd-kl-coef",
    f"{BY_HAND}::test_the_clip_bounds_the_teachers_term_before_its_coefficient": "opd-clip",
    f"{BRIDGE}/test_rollout_bridge.py::test_an_argument_reaches_the_runtime": "hf-checkpoint opd-teacher distill-topk",
    f"{FSDP}/test_ppo.py::test_advantages_are_those_of_a_recursion": "lambd",
    f"{FSDP}/test_ppo.py::test_the_value_loss_is_that_of_float64": "value-clip",
    # Losses
    f"{ACTOR}::test_the_loss_is_that_of_the_flag": "loss-type custom-loss-function-path",
    f"{BY_HAND}::test_the_clip_is_that_of_the_flags": "eps-clip eps-clip-high",
    f"{LOSSES}::test_loss_and_gradient_are_those_of_float64": """eps-clip-c use-kl-loss kl-loss-coef kl-loss-type
        use-unbiased-kl entropy-coef use-tis tis-clip tis-clip-low custom-tis-function-path use-opsm
        custom-pg-loss-reducer-function-path calculate-per-token-loss""",
    f"{LOSSES}::test_opsm_by_hand": "opsm-delta",
    f"{LOSSES}::test_mismatch_metrics_without_a_correction_leave_the_loss_alone": "get-mismatch-metrics",
    # Judge
    f"{BRIDGE}/test_evaluation_plugins.py::test_the_judge_is_asked_as_the_flags_say": """prm-m prm-temperature
        prm-max-new-tokens prm-router-port""",
    # Trainer
    f"{ACTOR}::test_where_the_weights_come_from": "ref-load",
    f"{ACTOR}::test_the_first_rollout_and_the_schedule_after_a_checkpoint": """load resume start-rollout-id
        use-checkpoint-lr-scheduler""",
    f"{ACTOR}::test_what_a_checkpoint_leaves_behind": "save save-keep save-hf",
    f"{ACTOR}::test_the_critics_checkpoints_go_to_their_own_folder": "critic-save",
    f"{INTEGRATION}/test_megatron_moe.py::test_the_second_step_sends_tokens_where_the_first_pass_did": (
        "use-routing-replay"
    ),
    f"{ENGINES}::test_the_policys_engines_report_experts_where_they_are_replayed": "use-rollout-routing-replay",
    f"{ACTOR}::test_the_passes_before_the_steps": "disable-compute-advantages-and-returns use-rollout-logprobs",
    f"{ACTOR}::test_the_pass_divides_by_the_temperature_in_chunks": "log-probs-chunk-size",
    f"{FSDP}/test_head_logprobs.py::test_a_gpu_takes_triton_and_a_cpu_torch": "logprob-kernel",
    f"{ACTOR}::test_a_push_has_buckets_of_the_flags_size": "update-weight-buffer-size",
    f"{ACTOR}::test_ranks_wait_for_each_other_as_long_as_the_flag_says": "distributed-timeout-minutes",
    f"{ACTOR}::test_a_critic_begins_with_the_backbone_that_is_named": "critic-load",
    "tests/unit/slime_core/test_arguments.py::test_a_warm_up_in_samples": "lr-warmup-samples",
    f"{TRAINING}::test_the_critic_has_a_rate_and_a_warm_up_of_its_own": "critic-lr critic-lr-warmup-iters",
    f"{TRAINING}::test_a_flag_is_in_the_optimizers_groups": "weight-decay adam-beta1 adam-beta2 adam-eps",
    f"{TRAINING}::test_gradients_are_clipped_to_the_flag": "clip-grad",
    f"{TRAINING}::test_the_rates_of_the_first_steps": """lr min-lr lr-decay-style lr-decay-iters lr-wsd-decay-iters
        lr-wsd-decay-style lr-warmup-iters lr-warmup-fraction lr-warmup-init""",
    f"{TRAINING}::test_a_flag_is_in_the_adapters_configuration": """lora-rank lora-alpha lora-dropout
        lora-target-modules""",
    f"{TRAINING}::test_the_model_that_is_built": "gradient-checkpointing train-dtype use-lora",
    f"{TRAINING}::test_the_attention_that_is_built": "attn-implementation pack-sequences",
    f"{TRAINING}::test_memory_that_shards_live_in": "fsdp-cpu-offload",
    f"{FSDP}/test_trainable_parameters.py::test_patterns_choose_parameters": """only-train-params-name-list
        freeze-params-name-list""",
    f"{TRAINER}::test_the_reference_follows_the_policy_and_is_in_the_checkpoint": "ref-update-interval",
    f"{TRAINER}::test_moments_are_forgotten_before_each_rollout": "reset-optimizer-states",
    f"{TRAINER}::test_entropies_dumps_and_traces": """use-rollout-entropy save-debug-train-data use-pytorch-profiler
        profile-step-start profile-step-end profile-target""",
    f"{BATCHES}::test_caps_hold_except_for_a_single_long_sample": "use-dynamic-batch-size max-tokens-per-gpu",
    f"{BATCHES}::test_a_micro_batch_has_as_many_samples_as_the_flag_says": "micro-batch-size",
    f"{BATCHES}::test_what_does_not_fill_a_batch_is_dropped_or_a_last_step": """global-batch-size
        num-steps-per-rollout use-dynamic-global-batch-size disable-rollout-trim-samples""",
    # Shape
    f"{SHAPE}::test_a_number_is_the_checkpoints": """num-layers hidden-size ffn-hidden-size num-attention-heads
        num-query-groups kv-channels rotary-base rotary-percent norm-epsilon vocab-size num-experts
        moe-ffn-hidden-size moe-router-topk""",
    f"{SHAPE}::test_a_switch_belongs_to_the_description_or_not": """swiglu group-query-attention
        use-rotary-position-embeddings qk-layernorm untie-embeddings-and-output-weights add-qkv-bias
        attention-output-gate""",
    f"{SHAPE}::test_what_no_model_here_has_is_refused": "normalization disable-bias-linear",
    # Megatron
    f"{MEGATRON}::test_a_flag_is_in_the_configuration_of_the_model": """tensor-model-parallel-size sequence-parallel
        pipeline-model-parallel-size context-parallel-size expert-tensor-parallel-size recompute-granularity
        recompute-method recompute-num-layers attention-backend transformer-impl""",
    f"{MEGATRON}::test_a_flag_is_in_the_configuration_of_the_optimizer": """use-precision-aware-optimizer
        optimizer-cpu-offload overlap-cpu-optimizer-d2h-h2d""",
    f"{MEGATRON}::test_ranks_that_share_experts_are_in_the_configuration": "expert-model-parallel-size",
    f"{MEGATRON}::test_a_specification_of_ones_own_is_used": "spec",
    f"{MEGATRON}::test_a_model_of_ones_own_is_built": "custom-model-provider-path",
    f"{MEGATRON}::test_a_hook_is_called_at_its_time": """custom-megatron-init-path
        custom-megatron-before-log-prob-hook-path custom-megatron-before-train-step-hook-path""",
    # Tracking
    f"{TRACKING}::test_json_lines_are_there_when_log_returns": "run-dir",
    f"{TRACKING}::test_tensorboard_by_flag": "use-tensorboard",
    f"{TRACKING}::test_tensorboard_folders": "tensorboard-dir tb-project-name tb-experiment-name",
    f"{TRACKING}::test_wandb_flags": """use-wandb wandb-key wandb-host wandb-group wandb-run-id
        disable-wandb-random-suffix""",
    f"{TRACKING}::test_trackio_flags": "use-trackio trackio-project",
    f"{TRACKING}::test_where_a_wandb_run_goes": "wandb-project wandb-team wandb-mode wandb-dir",
    f"{RAY}/test_step_axes.py::test_rollout_metrics_on_the_axis_of_steps": "wandb-always-use-train-step",
    f"{METRICS}::test_turns_with_and_without_observations": "log-multi-turn",
    f"{METRICS}::test_pass_rates_are_the_unbiased_estimate": "log-passrate",
    f"{METRICS}::test_categories_and_correct_samples": "log-reward-category log-correct-samples",
    f"{LAUNCH}/test_scripts.py::test_a_dry_run_of_the_trainer_starts_nothing": "dry-run",
    # Plugins of method folders read these
    f"{RULES}::test_environment_flags_reach_the_plugin": "prm-step-coef prm-sglang-url",
}
