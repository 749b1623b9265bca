"""The gateway: an OpenAI-compatible HTTP server in front of the policy engine that records every turn exactly."""
