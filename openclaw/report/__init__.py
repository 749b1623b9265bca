"""``openclaw-rl report RUN``: one HTML file about a run, for people.

Guarantees: the file is self-contained and holds no script. What a conversation says is text in it and nothing else.
"""
