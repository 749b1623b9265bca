"""The project's own agent loop, for environments without a harness: leases at one end, slime's samples at the other.

* ``generate``: slime's custom generate function; runs episodes, resumes aborted ones, gives up broken ones.
* ``parking``: aborted episodes that keep their leases until slime asks for them again.
* ``episode``: one episode from lease to verdict; ``policy``: its replies; ``prompts``: its prompts, token-exact.
* ``opening``: how an episode begins; ``actions``: how a reply becomes an action.
* ``context``: what is left out of a long conversation.
* ``samples``: turns and rewards as training samples; ``rewards``: the arithmetic; ``step_judge``: scores of steps.
* ``records``: what happened, on disk; ``inspect``: shows it.
* ``settings``: the variables; ``exceptions``: why an episode has no result.
"""
