"""The table of reasons: why a turn, a sample or an episode is not trained, in a sentence, and what to do.

Guarantees: every reason in the code has a row here or in the ``Config`` of the one method that gives it; a test
enumerates them. A method of your own may give others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from openclaw.config.method_config import Reason
from openclaw.launch.methods import methods_of

NOTHING = ""
"""What to do about a reason that needs nothing."""
ONE_TURN = (
    "Keep one session id per conversation (header X-Session-Id), or send the earlier messages with each request; "
    "POST /v1/feedback counts as well."
)
PLAIN = "Leave the parameter out of the client's requests."
READ_JUDGE = "Read the end of runtime.log; openclaw-rl doctor RUN looks at the judge."
UNFIT = "Nothing of yours causes this; the engine's answer is damaged. Read the engine's log under logs/."


REASONS: Mapping[str, Reason] = {
    # Known when the turn is recorded.
    "side": Reason(
        "The request was a helper's (a title, a heartbeat, a measurement), or the client marked it as a side turn.",
        "If it was a person's, remove the header X-Turn-Type: side (or turn_type in the body).",
    ),
    "aborted": Reason("The client left before the reply ended.", NOTHING),
    "evaluation": Reason("The run evaluates, so it trains nothing.", "Unset OPENCLAW_EVAL_MODE and restart the run."),
    "sampling_parameters": Reason(
        "A sampling parameter such as top_p made the engine draw from another distribution than the policy's.", PLAIN
    ),
    "grammar": Reason("A schema or a required tool call restricted the tokens.", PLAIN),
    "earlier_version": Reason(
        "The request named a version of the weights, and only replies of the version that serves are trained.",
        "To let it learn, ask without @VERSION in model, or choose the version that serves.",
    ),
    "min_tokens": Reason("The request's min_tokens forced the reply to go on.", PLAIN),
    "ignore_eos": Reason("The request's ignore_eos made the reply go on after its own end.", PLAIN),
    "stop_token_ids": Reason("The reply ended at a stop token of the request, where the policy would go on.", PLAIN),
    "stop": Reason("The reply ended at a stop string of the request, where the policy would go on.", PLAIN),
    "placeholder": Reason("The reply has a picture's placeholder, for which there is no picture.", NOTHING),
    "no_picture": Reason(
        "A picture of the prompt is not in this ledger.",
        "Train where the turn was served; a collector gets the words of turns, not their pictures.",
    ),
    "redacted": Reason(
        "The text held a secret, so its tokens were not stored.",
        "Keep secrets out of the conversation; OPENCLAW_REDACT says what counts as one.",
    ),
    "imported": Reason("The turn was imported. It was not served here and has no token ids.", NOTHING),
    "log_media": Reason("A message of the log has a picture or file, of which the log's text says nothing.", NOTHING),
    "log_part": Reason("A message of the log has a part that is not text, of a kind that is not read.", NOTHING),
    "log_failed_call": Reason("The server answered the call with an error, so there is no reply.", NOTHING),
    "log_other_branch": Reason("The reply is on a branch of the conversation that the user left.", NOTHING),
    "log_no_reply": Reason("The conversation of the export has no reply in words.", NOTHING),
    "imported_not_trainable": Reason("The turn was imported from a file that calls it not trainable.", NOTHING),
    # Known from what followed.
    "regenerated": Reason(
        "The user asked for another reply instead.", "OPENCLAW_REGENERATED=negative scores such a reply -1."
    ),
    "no_next_state": Reason("Nothing followed the reply that could tell how good it was.", ONE_TURN),
    # Known when the turn is judged.
    "temperature": Reason(
        "The reply was sampled at another temperature than the trainer's.",
        "Leave temperature out of the client's requests, or train at theirs (--rollout-temperature).",
    ),
    "length_mismatch": Reason("The reply has not one log-probability for each token.", UNFIT),
    "empty": Reason("The prompt or the reply has no tokens.", NOTHING),
    "too_short": Reason(
        "The reply is a fragment, and nobody disliked it.",
        "OPENCLAW_MIN_RESPONSE_TOKENS is the shortest length that counts.",
    ),
    "too_long": Reason(
        "Prompt and reply together are longer than the trainer takes.",
        "Raise OPENCLAW_MAX_TRAIN_TOKENS if the memory allows it, or shorten the conversations.",
    ),
    "non_finite_logprob": Reason("The engine reported a log-probability that is not a finite number.", UNFIT),
    "no_weight_version": Reason("The engine did not say which weights sampled the reply.", UNFIT),
    "truncated": Reason(
        "The token limit cut the reply off, so its end is not the policy's, and nobody disliked it.",
        "Raise OPENCLAW_MAX_TOKENS.",
    ),
    "repetition": Reason(
        "Most of the reply repeats a few tokens, and nobody disliked it.",
        "If there are many, stop and go back to an earlier checkpoint.",
    ),
    "duplicate": Reason("The same reply to the same conversation already gave a sample.", NOTHING),
    "off_language": Reason(
        "The reply is in another script than the user's words, and nobody disliked it.",
        "Take off_language out of OPENCLAW_HYGIENE to allow it.",
    ),
    "malformed_call": Reason(
        "The reply has a tool call that nobody can read, and the method has no score to blame it with.",
        "Check TOOL_CALL_PARSER against the model.",
    ),
    "asks_back": Reason("The reply only asks, so that the user's answer is not a sign of progress.", NOTHING),
    "tool_turns": Reason(
        "It is a late reply of a long chain of tool calls.", "OPENCLAW_MAX_TOOL_TURNS is the length of the chain."
    ),
    "judge_refused": Reason("The judge refused the question.", READ_JUDGE),
    "no_quorum": Reason(
        "Too few of the judge's answers were votes.",
        "Raise PRM_MAX_NEW_TOKENS if its answers are cut off; otherwise set OPENCLAW_JUDGE_GRAMMAR=1 or use a larger judge.",
    ),
    "judge_gave_up": Reason("Judging failed again and again, although the judge answers others.", READ_JUDGE),
    "under_lesson": Reason(
        "The prompt had its person's lessons, so the reply is that of a policy with lessons.",
        "OPENCLAW_LESSON_TURNS=served trains such turns; X-OpenClaw-Lessons: off leaves the lessons out of a request.",
    ),
    "forgotten_lesson": Reason("A lesson that the prompt had was deleted, and the turn's samples with it.", NOTHING),
    "probe": Reason("The turn is kept to compare versions of the weights.", NOTHING),
    # What a method has no use for.
    "score_zero": Reason("The judge saw neither progress nor a complaint, so there is nothing to learn.", NOTHING),
    "score_zero_no_hint": Reason("The judge's score is 0 and it gave no hint, so there is nothing to learn.", NOTHING),
    "no_hint": Reason("What followed does not say what should have been done.", NOTHING),
    "no_teacher_log_probs": Reason(
        "There was a hint, but the teacher gave no log-probabilities.", "Read runtime.log about the teacher."
    ),
    "no_teacher_topk": Reason(
        "There was a hint, but the teacher gave no top K.", "Read runtime.log about the teacher."
    ),
    # Of a sample.
    "stale": Reason(
        "Its weights were more updates old than allowed.",
        "Raise MAX_WEIGHT_STALENESS, or train such samples with --stale-samples correct.",
    ),
    "no_datum": Reason(
        "The service that trains cannot take the sample: it is too long, has pictures, or lacks log-probabilities.",
        "driver.log says which; lower CONTEXT_LENGTH if it is too long.",
    ),
    "rescored": Reason("The scores of this turn of a log were too old, so it was scored again.", NOTHING),
    "fuse": Reason(
        "A fuse held back the step that would have used it.", "openclaw-rl resume RUN, once the cause is mended."
    ),
    "quarantine": Reason(
        "The gate refused the update that would have used it.",
        "openclaw-rl versions RUN says why; openclaw-rl accept RUN releases such samples if the change is wanted.",
    ),
    "rollback": Reason("The weights went back to a version from before its step.", NOTHING),
    "other_method": Reason(
        "The run went on with another method, so the turn was judged again.",
        NOTHING,
    ),
    "superseded": Reason(
        "The person's opinion or later words replaced what was judged, and the turn was judged again.", NOTHING
    ),
    "lessons_changed": Reason(
        "The lessons that a practised reply was drawn for changed before a step used it.", NOTHING
    ),
    # Of an agent's episode and its turns.
    "episode": Reason("Its episode has not given its samples yet.", "Send the episode's reward."),
    "episode_over": Reason("The reply ended after its episode.", NOTHING),
    "episode_forgotten": Reason("Its sample was deleted together with another session of its episode.", NOTHING),
    "no_tokens": Reason("The reply has no token ids: it is empty, or held a secret.", NOTHING),
    "infra_error": Reason("The episode's driver reported a failure of the environment.", "Look into the driver's log."),
    "expired": Reason("The episode ran out of time without a reward.", "Send its reward, or a longer time-out."),
    "no_reward": Reason("The episode ended without a reward.", "Send a reward when it ends."),
    "no_turns": Reason("The episode has no turn that can be trained.", NOTHING),
    "no_signal": Reason("All episodes of the group got the same reward, so none is better.", NOTHING),
    "straggler": Reason("The rest of its group never came, so there is nothing to compare with.", NOTHING),
    "reward_unused": Reason("The run's method does not learn from rewards.", "Use --method rl or combine."),
}


@cache
def reasons_of_methods() -> Mapping[str, Reason]:
    """Return the reasons that only one of the repository's methods gives."""
    return {name: row for method in methods_of() for name, row in method.config.reasons.items()}


def explain(reason: str) -> Reason:
    """Return the row of a reason; one that is in no table is that of a method outside the repository."""
    row = REASONS.get(reason) or reasons_of_methods().get(reason)
    return row or Reason(f"The method's own reason is {reason!r}.", "The method's README explains it.")


def in_words(reason: str) -> str:
    """Return a reason's sentence and what to do, on one line."""
    row = explain(reason)
    return f"{row.sentence} {row.remedy}".rstrip()
