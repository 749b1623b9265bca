"""What runs in vLLM's workers beside their own methods (``--worker-extension-cls``): loading a folder of new weights.

vLLM's ``reload_weights`` leaves one thing behind on a CPU: a tied output layer keeps multiplying with the packed copy of its
old weights (log/vllm.md). Guarantee of `WeightLoading.load_folder`: every layer computes with the folder's weights.

vLLM's own interpreter imports this module, so it imports nothing of ours.
"""

from __future__ import annotations

from typing import Any


class WeightLoading:
    """vLLM adds its methods to its worker class."""

    model_runner: Any
    reload_weights: Any

    def load_folder(self, path: str) -> None:
        """Load the Hugging Face folder ``path``, which has the shapes of the model that is served."""
        from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
            ParallelLMHead,
        )

        self.reload_weights(weights_path=path)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
