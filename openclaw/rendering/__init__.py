"""From messages to prompt ids, with a wall: only the chat template writes control tokens.

Guarantees: no string of a message, a tool or a template keyword yields the id of a control token, wherever the template
puts it. Other prompts have the ids that the tokenizer gives the template's text. Imports no other room of openclaw but the errors.
"""
