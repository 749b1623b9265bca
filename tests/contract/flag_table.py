"""Every flag of the contract, by hand, in the order of its sections."""

from __future__ import annotations

SECTIONS: dict[str, str] = {
    "1.1 model shape": """swiglu num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention
        num-query-groups kv-channels use-rotary-position-embeddings rotary-base disable-bias-linear add-qkv-bias
        normalization norm-epsilon qk-layernorm vocab-size untie-embeddings-and-output-weights""",
    "1.2 parallelism, recompute, optimizer, bookkeeping": """tensor-model-parallel-size sequence-parallel
        pipeline-model-parallel-size context-parallel-size expert-model-parallel-size expert-tensor-parallel-size
        recompute-granularity recompute-method recompute-num-layers optimizer lr lr-decay-style min-lr
        lr-warmup-fraction weight-decay adam-beta1 adam-beta2 optimizer-cpu-offload overlap-cpu-optimizer-d2h-h2d
        use-precision-aware-optimizer attention-dropout hidden-dropout accumulate-allreduce-grads-in-fp32
        attention-softmax-in-fp32 attention-backend load save save-interval global-batch-size calculate-per-token-loss
        eval-interval wandb-project distributed-backend distributed-timeout-minutes micro-batch-size seed clip-grad
        async-save no-save-optim custom-config-path""",
    "1.3 used by scripts": """train-backend actor-num-nodes actor-num-gpus-per-node rollout-num-gpus
        rollout-num-gpus-per-engine num-gpus-per-node megatron-to-hf-mode hf-checkpoint ref-load rollout-function-path
        custom-generate-function-path custom-rm-path custom-rollout-log-function-path eval-function-path
        data-source-path num-rollout num-epoch rollout-batch-size n-samples-per-prompt num-steps-per-rollout
        rollout-max-response-len rollout-max-context-len rollout-temperature rollout-shuffle
        disable-rollout-global-dataset prompt-data input-key label-key metadata-key apply-chat-template multimodal-keys
        balance-data use-dynamic-batch-size max-tokens-per-gpu log-probs-chunk-size reward-key eval-reward-key
        eval-prompt-data n-samples-per-eval-prompt eval-max-response-len eval-max-context-len eval-top-p
        eval-temperature advantage-estimator loss-type custom-loss-function-path distill-topk use-kl-loss kl-loss-coef
        kl-loss-type entropy-coef eps-clip eps-clip-high disable-rewards-normalization
        disable-compute-advantages-and-returns dynamic_history dynamic-history debug-rollout-only debug-train-only
        use-wandb wandb-group wandb-key prm-enable prm-num-gpus prm-num-gpus-per-engine prm-m prm-model-path
        prm-step-coef prm-temperature prm-max-new-tokens prm-sglang-url gui-max-steps gui-sleep-after-execution
        gui-max-image-history-length gui-max-reward-image-history-length gui-wait-after-reset gui-eval-max-steps
        gui-eval-sleep-after-execution gui-eval-wait-after-reset""",
    "1.4 FSDP": """gradient-checkpointing use-lora lora-rank lora-alpha lora-target-modules lr-warmup-init lr-decay-iters
        lr-warmup-iters lr-wsd-decay-iters lr-wsd-decay-style use-checkpoint-lr-scheduler override-lr-scheduler adam-eps
        warmup-ratio attn-implementation fp16 fsdp-state-dict-cpu-offload fsdp-cpu-offload fsdp-cpu-backend
        deterministic-mode lora-dropout lora-modules-to-save record-memory-history memory-snapshot-path
        use-pytorch-profiler profile-step-start profile-step-end tensorboard-dir config""",
    "1.5 engines and router": """sglang-mem-fraction-static sglang-context-length sglang-reasoning-parser
        sglang-tool-call-parser sglang-router-ip sglang-router-port sglang-router-request-timeout-secs
        sglang-server-concurrency""",
    "1.5 router-*": """router-policy router-prefill-policy router-decode-policy router-cache-threshold router-balance-abs-threshold
        router-balance-rel-threshold router-bucket-adjust-interval-secs router-eviction-interval-secs
        router-max-tree-size router-max-idle-secs router-assignment-mode router-max-payload-size router-dp-aware
        router-enable-igw router-mini-lb router-pd-disaggregation router-prefill router-decode
        router-worker-startup-timeout-secs router-worker-startup-check-interval router-log-dir router-log-level
        router-service-discovery router-selector router-service-discovery-port router-service-discovery-namespace
        router-prefill-selector router-decode-selector router-prometheus-port router-prometheus-host
        router-prometheus-duration-buckets router-request-id-headers router-request-timeout-secs
        router-shutdown-grace-period-secs router-cors-allowed-origins router-max-concurrent-requests router-queue-size
        router-queue-timeout-secs router-rate-limit-tokens-per-second router-retry-max-retries
        router-retry-initial-backoff-ms router-retry-max-backoff-ms router-retry-backoff-multiplier
        router-retry-jitter-factor router-disable-retries router-cb-failure-threshold router-cb-success-threshold
        router-cb-timeout-duration-secs router-cb-window-duration-secs router-disable-circuit-breaker
        router-health-failure-threshold router-health-success-threshold router-health-check-timeout-secs
        router-health-check-interval-secs router-health-check-endpoint router-disable-health-check router-model-path
        router-tokenizer-path router-chat-template router-tokenizer-cache-enable-l0
        router-tokenizer-cache-l0-max-entries router-tokenizer-cache-enable-l1 router-tokenizer-cache-l1-max-memory
        router-reasoning-parser router-tool-call-parser router-mcp-config-path router-backend router-history-backend
        router-oracle-wallet-path router-oracle-tns-alias router-oracle-connect-descriptor router-oracle-username
        router-oracle-password router-oracle-pool-min router-oracle-pool-max router-oracle-pool-timeout-secs
        router-postgres-db-url router-postgres-pool-max router-redis-url router-redis-pool-max
        router-redis-retention-days router-client-cert-path router-client-key-path router-ca-cert-paths
        router-tls-cert-path router-tls-key-path router-enable-trace router-otlp-traces-endpoint router-api-key
        router-control-plane-api-keys router-control-plane-audit-enabled router-jwt-issuer router-jwt-audience
        router-jwt-jwks-uri router-jwt-role-mapping""",
    "1.7 cluster and train": """critic-num-nodes critic-num-gpus-per-node colocate offload offload-train offload-rollout
        qkv-format true-on-policy-mode train-env-vars train-memory-margin-bytes disable-weights-backuper
        custom-model-provider-path recompute-loss-function only-train-params-name-list freeze-params-name-list
        log-probs-max-tokens-per-gpu""",
    "1.7 rollout": """model-name rollout-top-p rollout-top-k rollout-max-prompt-len rollout-skip-special-tokens rollout-stop
        rollout-stop-token-ids rollout-seed over-sampling-batch-size dynamic-sampling-filter-path partial-rollout
        mask-offpolicy-in-partial-rollout custom-eval-rollout-log-function-path buffer-filter-path
        update-weight-buffer-size update-weights-interval keep-old-actor rollout-data-postprocess-path rollout-external
        rollout-external-engine-addrs use-fault-tolerance rollout-health-check-interval rollout-health-check-timeout
        rollout-health-check-first-wait""",
    "1.7 data and evaluation": """apply-chat-template-kwargs tool-key start-rollout-id loss-mask-type
        data-pad-size-multiplier rollout-sample-filter-path rollout-all-samples-process-path
        disable-rollout-trim-samples use-dynamic-global-batch-size eval-config skip-eval-before-train eval-input-key
        eval-label-key eval-tool-key eval-top-k eval-max-prompt-len eval-min-new-tokens""",
    "1.7 algorithm": """ref-ckpt-step save-hf num-critic-only-steps critic-load critic-save critic-lr critic-lr-warmup-iters
        eps-clip-c value-clip kl-coef use-unbiased-kl ref-update-interval gamma lambd normalize-advantages
        disable-grpo-std-normalization use-rollout-entropy get-mismatch-metrics reset-optimizer-states
        use-rollout-logprobs use-tis tis-clip tis-clip-low custom-tis-function-path
        custom-pg-loss-reducer-function-path use-routing-replay use-rollout-routing-replay use-opsm opsm-delta""",
    "1.7 router, logging, debugging": """use-slime-router slime-router-middleware-paths slime-router-timeout
        slime-router-max-connections slime-router-health-check-failure-threshold wandb-mode wandb-dir wandb-host
        wandb-team wandb-run-id disable-wandb-random-suffix wandb-always-use-train-step log-multi-turn log-passrate
        log-reward-category log-correct-samples use-tensorboard tb-project-name tb-experiment-name
        save-debug-rollout-data load-debug-rollout-data load-debug-rollout-data-subsample save-debug-train-data
        dump-details memory-snapshot-dir memory-snapshot-num-steps profile-target memory-recorder
        check-weight-update-equal""",
    "1.7 network, reward, judge, buffer, hooks, CI": """http-proxy use-distributed-post rm-type group-rm rm-url
        custom-reward-post-process-path custom-convert-samples-to-train-data-path prm-router-ip prm-router-port
        rollout-buffer-url fetch-trajectory-retry-times min-batch-collection-ratio rollout-task-type
        custom-megatron-init-path custom-megatron-before-log-prob-hook-path
        custom-megatron-before-train-step-hook-path enable-mtp-training prefill-num-servers ci-test
        ci-disable-kl-checker ci-metric-checker-key ci-metric-checker-threshold ci-save-grad-norm ci-load-grad-norm""",
    "1.8 newest": """qwen-gdn-backend update-weight-mode update-weight-transport update-weight-disk-dir
        update-weight-disk-keep-files update-weight-delta-encoding update-weight-delta-checksum
        update-weight-local-checkpoint-dir custom-update-weight-post-write-path release-train freeze-indexer
        allgather-cp rollout-sample-hook-path rollout-data-transport balance-by-flops megatron-config-path
        custom-advantage-function-path use-stateless-adam use-opd opd-type opd-kl-coef opd-teacher-load
        opd-teacher-ckpt-step load-forge-rollout-data megatron-deepgemm-forward-layers
        megatron-deepgemm-forward-modules megatron-deepgemm-moe-forward-layers megatron-deepgemm-moe-forward-modules
        ci-train-rollout-logprob-abs-diff-threshold sglang-config""",
}
FLAGS = [flag for names in SECTIONS.values() for flag in names.split()]
