"""vLLM as the engine: its server behind a translator that speaks SGLang's routes, and the actor that owns both."""
