"""The screen agent with eyes: a tiny Qwen3-VL that learns to point at screenshots of MiniWoB++."""
