"""An update of the policy, from the optimizer's steps to the engines; `slime.updates.update` has its states."""
