"""The project's own agent loop, for training and evaluation: an environment at one end, a policy at the other.

* ``play``: the one loop: limits, endings, verdict. ``actions``: how an episode begins, and how a reply becomes an action.
* ``context``: what is left out of a long conversation; ``pictures``: what the policy sees.
* ``token_policy``: a policy of ids and log-probabilities, for training; ``chat_policy``: any OpenAI endpoint, for evaluation.
* ``episode``: an episode of training, from lease to samples; ``step_judge``: scores of its steps.
* ``generate``: slime's custom generate function; runs episodes, keeps aborted ones for later, gives up broken ones.
* ``own_pool``: environments in the trainer's process.
* ``records``: what happened, on disk; ``inspect``: shows it.
* ``settings``: the variables; ``custom_config``: what a run's file says.
"""
