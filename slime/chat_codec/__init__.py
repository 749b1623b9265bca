"""Text to token ids and back: rendering prompts, detokenising, parsing replies.

Guarantees: only the chat template writes control tokens; sampled text is never tokenised again. Imports `groundwork` only.
"""
